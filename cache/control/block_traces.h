#pragma once

// Traces of the blocks that a job asks for, on request: a recording on each data-plane thread, put together when the
// last of them has ended. Bounded in blocks, time and number at once. Control thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cache/shard/block_trace.h"
#include "cache/shard/shard_thread.h"

namespace boost::asio {
class io_context;
}

namespace larder::cache {

// The blocks of a trace that has ended, in the order in which they were taken.
struct TracedBlocks {
    std::int64_t began_ns = 0;
    std::int64_t ended_ns = 0;
    bool is_full = false;  // false: the time has ended it
    std::vector<BlockTrace> blocks;
};

class BlockTraces {
public:
    static constexpr std::size_t kAtOnceMax = 4;
    static constexpr std::uint64_t kBlocksMax = 5'000;
    static constexpr double kSecondsMax = 60;

    struct Request {
        std::string job;
        double seconds = 10;
        std::uint64_t blocks = 1'000;
    };
    using Done = std::function<void(Result<TracedBlocks>)>;

    // `control` is the control thread's. Both must outlive the BlockTraces.
    BlockTraces(ShardThreads& shards, boost::asio::io_context& control) : shards_(shards), control_(control) {}

    // Returns the number of the trace and calls `done` once, later. `done` fails with not_found if no data-plane thread
    // knows the job. Fails at once with already_exists if the job is being traced, or kAtOnceMax jobs are.
    Result<std::uint64_t> start(const Request& request, Done done);
    // Ends a trace early, with the blocks so far. Does nothing if it has ended.
    void stop(std::uint64_t number);
    // Fails traces whose data-plane threads do not answer in time. Call it about once a second.
    void fail_overdue();

private:
    struct Running;
    void take_part(const std::shared_ptr<Running>& trace, Result<std::shared_ptr<TraceRecording>> part);
    void end(const std::shared_ptr<Running>& trace, Result<TracedBlocks> result);

    ShardThreads& shards_;
    boost::asio::io_context& control_;
    SteadyClock clock_;
    std::vector<std::shared_ptr<Running>> running_;
    std::uint64_t last_number_ = 0;
};

}  // namespace larder::cache
