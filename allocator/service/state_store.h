#pragma once

// The allocator's memory across restarts: two LMDB environments in its state directory.
// - settings/ has what users and operators set: registered jobs, pins, the remote's bandwidth. Changes are written on a
//   thread of their own, together where several wait; when_on_record() tells when they survive a power cut.
// - cluster/ has what is reported, planned and leased, which is written many times a second. It survives the process
//   once save() returns, but no power cut: a reboot is told by its boot id, and then nothing is leased for as long as a
//   lease lasts.
// A lost or damaged environment starts empty, and a damaged one is put aside. Nodes' reports then tell the cluster
// again. A state from a newer version is refused. One process at a time, one thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "allocator/record.h"
#include "allocator/service/state_rows.h"
#include "base/error.h"
#include "base/file.h"
#include "base/server/row_store.h"
#include "base/server/row_writer.h"

namespace larder::allocator {

struct StateStoreOptions {
    std::string directory;                             // made if missing
    std::uint64_t map_bytes = std::uint64_t{1} << 30;  // address space, and the most the state can take
    std::int64_t lease_ns = 0;                         // how long what is leased from now on lasts
    std::string boot_id;                               // empty: the kernel's
    bool leases_end_with_it = false;                   // who holds leases ends with this process
};

class StateStore {
public:
    // `now_ns` is CLOCK_MONOTONIC's, which leases are told in.
    static Result<std::unique_ptr<StateStore>> open(const StateStoreOptions& options, std::int64_t now_ns);

    // As it was found; its times are by the present clock.
    const ClusterRecord& found() const { return stored_.record; }
    // Settings follow on the writer's thread; of the rest all is on record or, with the error, nothing of the change
    // is. no_space: the map or the disk is full.
    Result<void> save(const ClusterRecord& change);
    // `then` is called on another thread, once all settings saved so far survive a power cut; with an error where those
    // saved last are not on record.
    void when_on_record(RowWriter::Done then);

private:
    StateStore() = default;
    Result<void> take_up_settings(const StateStoreOptions& options, std::vector<Row> moved);
    Result<void> begin_run(const StateStoreOptions& options, std::int64_t now_ns);

    FileDescriptor lock_;
    StoredState stored_;
    std::unique_ptr<RowStore> rows_;
    std::unique_ptr<RowStore> settings_;
    std::shared_ptr<Result<void>> last_written_ = std::make_shared<Result<void>>();  // the writer's
    std::unique_ptr<RowWriter> writer_;
};

}  // namespace larder::allocator
