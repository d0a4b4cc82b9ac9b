#pragma once

// Moves stores of rows into etcd, where open_etcd_rows() finds them. While a move is under way, and after one that was
// killed, PREFIX "moving" is there, and open_etcd_rows() refuses the stores. The next move begins anew.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/server/etcd.h"
#include "base/server/row_store.h"

namespace larder {

struct MovedRows {
    std::string noun;  // as in RowStoreOptions
    std::uint64_t version = 1;
    std::vector<Row> rows;  // each with a text
};

// Writes the stores, reads them back, calls `written`, and marks them as complete. `written` makes the place that they
// were in unusable, so that nobody goes on there. Blocks. Returns the number of rows. Errors: already_exists if a
// process leads by `leader_key`, or the prefix has other keys; no_space, and nothing written, if a row is too large for
// etcd; corrupt if etcd has other rows than those written; the errors of EtcdClient::write, and that of `written`.
Result<std::size_t> move_rows_to_etcd(const EtcdOptions& etcd, const std::string& leader_key,
                                      std::span<const MovedRows> stores, const std::function<Result<void>()>& written);

}  // namespace larder
