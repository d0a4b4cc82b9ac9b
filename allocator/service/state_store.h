#pragma once

// The allocator's memory across restarts: two LMDB environments in its state directory.
// - settings/ has the settings of users and operators: registered jobs, pins, the remote's bandwidth; and the floors
// that nodes were promised. A writer thread saves changes, several together if they wait; when_durable() and
// when_promised() tell when they survive a power cut.
// - cluster/ has reports, plans and leases, and is written many times a second. It survives the process once save()
// returns, but no power cut. Another boot, or another machine, is noticed by its boot id; then nothing is leased for
// the length of a lease.
// With `shared_settings`, one of several allocators that stand in for each other has the settings where all of them can
// read them, and no cluster/. The settings then have the rates of all leases (LeaseLedger::to_record), and the measured
// f* and the epochs of jobs, too. After each change of leader those rates count as leased for the length of a lease. If
// they may not be all, nothing is leased for that long.
// A lost or damaged environment starts empty, and a damaged one is put aside; reports then fill it again. A state from
// a newer version is refused. Only one process at a time can open the directory. Call from one thread.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/cluster_record.h"
#include "allocator/service/state_rows.h"
#include "base/error.h"
#include "base/file.h"
#include "base/server/row_store.h"
#include "base/server/row_writer.h"

namespace larder::allocator {

// This file of a state directory says where its state was moved to. The directory is refused then.
inline constexpr const char* kMovedFile = "moved";

struct StateStoreOptions {
    std::string directory;                             // made if missing; not used with shared_settings
    std::uint64_t map_bytes = std::uint64_t{1} << 30;  // address space, and the most the state can take
    std::int64_t lease_ns = 0;                         // the length of leases from now on
    std::string boot_id;                               // empty: the kernel's
    bool lease_holders_end_with_process = false;       // the holders of leases end with this process
    OpenRows shared_settings;                          // empty: an LMDB environment in the directory
    bool opens_moved = false;                          // even if kMovedFile is there
    // Called with each LMDB environment once the directory is locked. An error ends open(); empty: a damaged
    // environment is put aside.
    std::function<Result<void>(const std::string& environment)> check_damage;
};

class StateStore {
public:
    // `now_ns` is by CLOCK_MONOTONIC, the clock of leases.
    static Result<std::unique_ptr<StateStore>> open(const StateStoreOptions& options, std::int64_t now_ns);

    // Returns the state that open() found. Its times are by the clock of this boot: leases of an earlier boot expire at
    // the time of open(). With shared settings, the leases are those that stand for the rates on record.
    const ClusterRecord& found() const { return stored_.record; }
    // Returns the length of the longest lease that this process may grant, or that may be in force from before.
    std::int64_t longest_lease_ns() const { return longest_lease_ns_; }
    // Gives up the directory's lock, for an owner that keeps the directory locked when the store is gone. Null with
    // shared settings.
    FileDescriptor take_lock() { return std::move(lock_); }
    // Saves a change. Settings, floors and rates are saved later, on the writer's thread. The rest is saved on return;
    // on an error none of it is. Error: no_space if the map or the disk is full.
    Result<void> save(const ClusterRecord& change);
    // Calls `then` on another thread, once all settings saved so far survive a power cut, or with an error if one of
    // them does not, unless it is withdrawn by now. Settings that could not be written are tried once more.
    void when_durable(RowWriter::Done then);
    // Forgets a failure to write the setting, once it was set back: to those who ask now, the failed change has not
    // been made. "remote", "pin/DATASET" or "job/NAME".
    void withdraw_setting(const std::string& setting);
    // True if they all do now.
    bool all_durable() const;
    // The same for the floor and the rates that the node was promised.
    void when_promised(const std::string& node, RowWriter::Done then);
    bool is_promised(const std::string& node) const;
    // Forgets a failure of when_promised(), once the lease was withdrawn that relied on what could not be saved.
    void withdraw_promises(const std::string& node);

private:
    StateStore() = default;
    Result<void> open_cluster(const StateStoreOptions& options, std::vector<Row>& moved);
    Result<void> open_settings(const StateStoreOptions& options, std::vector<Row> moved);
    Result<void> begin_term(const StateStoreOptions& options, std::int64_t now_ns);
    Result<void> begin_run(const StateStoreOptions& options, std::int64_t now_ns);
    std::vector<Row> changed_ideals(const ClusterRecord& change);
    std::vector<Row> changed_epochs(const ClusterRecord& change) const;
    // `promised_to`: as in ClusterRecord.
    void post(std::vector<Row> rows, const std::string& promised_to, bool has_settled_run);

    FileDescriptor lock_;
    std::int64_t longest_lease_ns_ = 0;
    StoredState stored_;
    std::unique_ptr<RowStore> rows_;  // of cluster/; null with shared settings
    std::unique_ptr<RowStore> settings_;
    std::vector<Row> unreadable_rates_;  // to be removed
    // Says how long leases are from now on and, with shared settings, that all rates are on record. Written with the
    // first lease that is granted when all earlier ones have expired: such a lease ends at `settled_ns_` or later.
    std::optional<Row> settled_run_;
    std::int64_t settled_ns_ = 0;
    std::map<std::string, MeasuredIdeal> recorded_ideals_;
    // The fate of the rows that were given to the writer. The writer's thread uses it, too.
    struct Writes {
        struct Key {
            bool is_setting = false;          // in the last post
            std::size_t pending = 0;          // posts that are not answered yet
            std::uint64_t failed = 0;         // number of the last post that failed; 0: the last one was written
            std::uint64_t withdrawn = 0;      // posts up to this number no longer matter, if they failed
            std::optional<Error> error;       // of `failed`
            std::optional<std::string> text;  // of `failed`
        };
        struct Post {
            std::uint64_t number = 0;
            std::vector<Row> tracked;  // rows that an answer may wait for, or that are written again after a failure
            std::vector<std::string> ideals;
            bool has_settled_run = false;
        };
        std::mutex mutex;
        std::uint64_t posts = 0;
        std::map<std::string, Key, std::less<>> keys;  // of tracked rows that are pending or have failed
        std::atomic<std::size_t> settings = 0;         // how many of `keys` are settings
        std::vector<std::string> lost_ideals;          // jobs whose row could not be written
        std::atomic<bool> settled_run_pending = false;
        std::atomic<bool> settled_run_written = false;

        void posted(Post& post);
        void answered(const Post& post, const Result<void>& written);
        // Returns the error of a row that has failed since it was withdrawn up to this number, if there is one.
        Result<void> failure_of(const std::map<std::string, std::uint64_t>& withdrawn);
    };
    std::shared_ptr<Writes> writes_ = std::make_shared<Writes>();
    std::unique_ptr<RowWriter> writer_;
};

}  // namespace larder::allocator
