#pragma once

// The state of an allocator without etcd, as rows that one of several allocators finds in etcd.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/server/etcd_move.h"

namespace larder::allocator {

struct StateToMove {
    FileDescriptor lock;  // no allocator can open the state meanwhile
    MovedRows settings;
};

// Reads the settings, floors, measured f*, epochs and leases of the state in `directory`. Leases that may be in force
// become the rates on record (LeaseLedger::to_record). `now_ns` is by CLOCK_MONOTONIC. Errors: not_found if there is no
// state; already_exists if an allocator has it open; corrupt if it is damaged.
Result<StateToMove> read_state_to_move(const std::string& directory, std::int64_t lease_ns, std::int64_t now_ns);

// Makes StateStore::open refuse the directory from now on, because its state is in use elsewhere: `where`.
Result<void> mark_as_moved(const std::string& directory, const std::string& where);

}  // namespace larder::allocator
