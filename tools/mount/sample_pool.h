#pragma once

// Fetches samples for many threads at once. A pool owns several readers, each with a session of its own at the node's
// daemon. A thread that needs a sample takes an idle reader for the time of the fetch; threads that need the same
// sample wait for the first one's fetch. Samples stay for about a second after their last use, so that a file that is
// read in pieces is fetched once; samples of open files stay for a minute. They lie in the daemon's memory, which the
// pool maps: nothing is copied. If samples are asked for one after the other, in the order of their indexes, groups of
// those that follow are fetched ahead, on threads of the pool.
//
// Threads: all functions may be called from any thread. The pool must outlive the samples it gave out.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cache/protocol/manifest.h"
#include "loader/dataset_core.h"
#include "loader/larder.h"

namespace larder::mount {

// The most that readers ask the daemon for, unless one reader needs more.
inline constexpr std::uint64_t kPoolMemoryMax_bytes = std::uint64_t{1} << 30;

struct PoolOptions {
    ConnectOptions connection;     // memory_budget_bytes is a reader's, which takes more if the largest block needs it
    std::size_t readers_max = 16;  // fewer if they would need more than kPoolMemoryMax_bytes
};

class SamplePool {
public:
    // Opens the newest version of the dataset. All readers read this version.
    static Result<std::unique_ptr<SamplePool>> open(PoolOptions options);
    ~SamplePool();

    const protocol::Manifest& manifest() const { return manifest_; }

    // Waits until the sample is here. The sample is valid as long as the pointer. Fails with ErrorCode::cancelled if
    // connection.interrupted says so on this thread.
    Result<std::shared_ptr<const Sample>> get(std::uint64_t sample);

    // Tells that a file of the sample was opened or closed.
    void note_open(std::uint64_t sample);
    void note_closed(std::uint64_t sample);

private:
    struct Reader {
        std::unique_ptr<detail::DatasetCore> core;
        std::vector<Batch> unused;  // batches that nobody uses; only the reader's owner may destroy them
    };
    using SharedSample = std::shared_ptr<const Sample>;
    // A stretch of samples that is being read in order.
    struct Run {
        std::uint64_t group = kNone;  // the first sample of the group that was fetched last
        std::uint64_t next = kNone;   // the first sample of the group that comes next
        std::uint32_t length = 0;     // of the group that was fetched last, at most; 1: nothing was read in order yet
    };
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};
    // The fetch of one sample, and the sample while it is kept.
    struct Fetch {
        bool is_requested = true;                    // false: fetched together with the sample that was asked for
        std::optional<Result<SharedSample>> result;  // empty while the fetch goes on
        bool is_kept = false;                        // in recent_
        std::list<std::uint64_t>::iterator place;    // in recent_, if the sample is kept
        std::int64_t used_ns = 0;
    };
    // Samples that one thread fetches at once.
    struct Group {
        std::vector<std::uint64_t> samples;
        std::vector<std::shared_ptr<Fetch>> fetches;  // of these samples
        bool is_ahead = false;                        // nobody has asked for a sample of it yet
    };

    SamplePool(PoolOptions options, std::unique_ptr<detail::DatasetCore> first);

    // Returns the samples to fetch when this one is asked for, which nobody has fetched.
    Group group_from(std::uint64_t sample);
    // Returns those of [first, end) that nobody has fetched.
    Group reserve(std::uint64_t first, std::uint64_t end);
    // Has the next group of the run fetched by a thread that has nothing else to do; does nothing if there is none.
    void start_ahead(Run& run);
    void fetch_ahead(const std::stop_token& stop);
    // Fetches a group. Unlocks.
    Result<SharedSample> get_group(const Group& group, std::unique_lock<std::mutex>& lock);
    std::int64_t kept_ns(std::uint64_t sample, const Fetch& fetch) const;
    // Waits until a reader is idle, or opens one more. A daemon that has no room for another one is not asked again for
    // some seconds.
    Result<Reader*> take_reader(std::unique_lock<std::mutex>& lock);
    // Waits for a change. Fails if the caller's wait is interrupted.
    Result<void> wait(std::unique_lock<std::mutex>& lock);
    // The end of a group of `length` samples, or of fewer, because a block is fetched whole.
    std::uint64_t end_of_group(std::uint64_t first, std::uint32_t length) const;
    Result<std::vector<SharedSample>> fetch(Reader& reader, const Group& group);
    std::uint64_t block_bytes_of(std::span<const std::uint64_t> samples) const;
    std::vector<SharedSample> share(Reader& reader, Batch batch);
    void destroy_unused(Reader& reader);
    // Forget a sample, or the one used least recently. The caller destroys it without the lock.
    SharedSample forget(std::uint64_t sample);
    SharedSample forget_oldest();
    void keep_sessions(const std::stop_token& stop);

    PoolOptions options_;
    bool (*const caller_is_interrupted_)();
    const std::uint64_t group_bytes_max_;
    const SteadyClock clock_;
    const protocol::Manifest& manifest_;  // the first reader's
    std::mutex mutex_;
    std::condition_variable changed_;  // a fetch ended, a reader became idle, or a batch became unused
    std::vector<std::unique_ptr<Reader>> readers_;
    std::vector<Reader*> idle_;                                  // the one used last is at the end
    std::size_t opening_ = 0;                                    // readers that are being opened
    bool is_keeping_ = false;                                    // keeper_ has the readers that were idle
    std::int64_t open_more_ns_ = 0;                              // no further reader is opened before
    std::unordered_map<std::uint64_t, std::size_t> open_files_;  // by sample
    std::deque<std::uint64_t> closed_;                           // samples whose files were closed, oldest first
    std::uint64_t times_away_ = 0;                               // fetches that failed because the daemon stayed away
    Error away_error_;                                           // of the last one
    std::unordered_map<std::uint64_t, std::shared_ptr<Fetch>> fetches_;
    std::array<Run, 8> runs_{};        // the one used least recently first
    std::list<std::uint64_t> recent_;  // samples that are here, the least recently used first
    std::condition_variable_any stopping_;
    std::condition_variable_any ahead_wanted_;
    std::deque<Group> ahead_;  // to be fetched; no more than there are idle threads
    static constexpr std::size_t kAheadThreads = 4;
    std::size_t ahead_idle_ = kAheadThreads;  // also those that have not begun to wait yet
    std::jthread keeper_;
    std::array<std::jthread, kAheadThreads> ahead_threads_;
};

}  // namespace larder::mount
