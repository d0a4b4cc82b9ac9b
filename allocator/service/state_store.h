#pragma once

// The allocator's memory across restarts: an LMDB environment in its state directory. A change is on record when `save`
// returns: it survives the process at once, and the machine a while later (MDB_NOSYNC: a reboot is told by its boot id,
// and then nothing is leased for as long as a lease lasts, because the record of leases may have lost its end). A lost
// or damaged state starts afresh, the damaged one put aside, with a loud line in the log; reports then tell again what
// the cluster is. One from a newer version is refused. One process at a time, one thread.

#include <cstdint>
#include <memory>
#include <string>

#include "allocator/record.h"
#include "allocator/service/state_rows.h"
#include "base/error.h"
#include "base/file.h"
#include "base/server/row_store.h"

namespace larder::allocator {

struct StateStoreOptions {
    std::string directory;                             // made if missing
    std::uint64_t map_bytes = std::uint64_t{1} << 30;  // address space, and the most the state can take
    std::int64_t lease_ns = 0;                         // how long what is leased from now on lasts
    std::string boot_id;                               // empty: the kernel's
};

class StateStore {
public:
    // `now_ns` is CLOCK_MONOTONIC's, which leases are told in.
    static Result<std::unique_ptr<StateStore>> open(const StateStoreOptions& options, std::int64_t now_ns);

    // As it was found; its times are by the present clock.
    const ClusterRecord& found() const { return stored_.record; }
    // All of the change or, with the error, nothing. no_space: the map or the disk is full.
    Result<void> save(const ClusterRecord& change);
    // Down on the disk.
    void sync() { rows_->sync(); }

private:
    StateStore() = default;
    Result<void> begin_run(const StateStoreOptions& options, std::int64_t now_ns);

    FileDescriptor lock_;
    StoredState stored_;
    std::unique_ptr<RowStore> rows_;
};

}  // namespace larder::allocator
