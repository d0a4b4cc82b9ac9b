#pragma once

// Rows in etcd, for several processes of which one at a time leads and writes. A write takes effect only while the
// leader's key is the one of this process, and in the order of writes. So a process that was replaced writes nothing,
// even if it does not know yet, and a delayed write overwrites nothing. etcd takes 128 changes in a transaction, and
// requests of 1.5 MiB: a larger change is recorded as a journal first, and carried out in parts. The next leader
// finishes a journal that it finds.
//
// The keys of the rows are PREFIX NOUN "/" KEY, and their values are sealed (seal_row). The journal's parts are PREFIX
// "journal/" NOUN "/" I. The key PREFIX "journal/" NOUN, written with the last of them, makes them count. The key
// PREFIX "sequence/" NOUN tells which write was the last. A value that does not match its CRC is an error, and so is a
// row that cannot be read, unless the caller can do without that row: etcd has replicas, so only a person can tell what
// to do.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/server/etcd.h"
#include "base/server/row_store.h"

namespace larder {

// This key is there while stores are moved into etcd (base/server/etcd_move.h), and after a move that was killed. No
// store opens then.
inline constexpr std::string_view kMovingKey = "moving";

// Key and text of a row have so many bytes at most, and so have those of a transaction: etcd takes requests of 1.5 MiB
// by default, and base64 adds a third.
inline constexpr std::size_t kEtcdRowBytesMax = 1u << 20;

struct EtcdFence {
    std::string key;  // the leader's, without the prefix
    std::int64_t create_revision = 0;
    std::function<bool()> is_held;  // any thread; false once the process no longer leads
};

// Fails if `fence` is not held. Reads and writes that etcd does not answer are tried again until it is no longer held.
// Then they are an error, but a write may have been carried out. A row has 1 MiB at most, else the error is no_space.
// Use the store on one thread at a time.
Result<std::unique_ptr<RowStore>> open_etcd_rows(const EtcdOptions& etcd, EtcdFence fence,
                                                 const RowStoreOptions& options);

}  // namespace larder
