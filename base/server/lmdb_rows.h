#pragma once

// Rows in an LMDB environment, whose every value carries a CRC, because LMDB returns flipped bits as good data. A lost
// or damaged environment starts afresh, and the damaged one is moved to DIRECTORY.damaged. One process at a time, which
// the owner ensures, and one thread at a time.

#include <memory>

#include "base/error.h"
#include "base/server/row_store.h"

namespace larder {

Result<std::unique_ptr<RowStore>> open_lmdb_rows(const RowStoreOptions& options);

}  // namespace larder
