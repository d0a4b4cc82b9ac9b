#include "cache/control/block_traces.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include "cache/shard/shard.h"

namespace larder::cache {
namespace {

// The time that a data-plane thread has to answer, beyond the time of the trace.
constexpr std::int64_t kTraceAnswerWithin_ns = 5'000'000'000;

}  // namespace

struct BlockTraces::Running {
    std::uint64_t number = 0;
    Request request;
    Done done;
    std::int64_t deadline_ns = 0;
    std::size_t missing = 0;
    std::vector<std::pair<ShardThread*, std::shared_ptr<TraceRecording>>> recordings;
    std::vector<std::shared_ptr<TraceRecording>> parts;
    std::optional<Error> error;  // why a thread records nothing
};

Result<std::uint64_t> BlockTraces::start(const Request& request, Done done) {
    if (running_.size() >= kAtOnceMax) {
        return fail(ErrorCode::already_exists, std::to_string(kAtOnceMax) +
                                                   " traces run on this node, as many as may; try again when one has "
                                                   "ended");
    }
    const auto is_same = [&](const auto& running) { return running->request.job == request.job; };
    if (std::ranges::any_of(running_, is_same)) {
        return fail(ErrorCode::already_exists,
                    "job \"" + request.job + "\" is being traced; try again when that has ended");
    }
    auto trace = std::make_shared<Running>();
    trace->number = ++last_number_;
    trace->request = request;
    trace->done = std::move(done);
    const auto limit_ns = static_cast<std::int64_t>(request.seconds * 1e9);
    trace->deadline_ns = clock_.now_ns() + limit_ns + kTraceAnswerWithin_ns;
    trace->missing = shards_.all().size();
    running_.push_back(trace);
    for (const auto& shard : shards_.all()) {
        auto recording = std::make_shared<TraceRecording>(request.job, static_cast<std::size_t>(request.blocks));
        const auto answer = [this, trace](Result<std::shared_ptr<TraceRecording>> part) {
            boost::asio::post(control_, [this, trace, part = std::move(part)] { take_part(trace, part); });
        };
        recording->done = [answer](const std::shared_ptr<TraceRecording>& ended) { answer(ended); };
        trace->recordings.emplace_back(shard.get(), recording);
        shard->post([recording, limit_ns, answer](Shard& this_shard) {
            auto started = this_shard.start_trace(recording, limit_ns);
            if (!started) answer(std::unexpected(started.error()));
        });
    }
    return trace->number;
}

void BlockTraces::stop(std::uint64_t number) {
    const auto found = std::ranges::find(running_, number, [](const auto& trace) { return trace->number; });
    if (found == running_.end()) return;
    for (const auto& [shard, recording] : (*found)->recordings) {
        shard->post([recording](Shard& this_shard) { this_shard.stop_trace(*recording); });
    }
}

void BlockTraces::take_part(const std::shared_ptr<Running>& trace, Result<std::shared_ptr<TraceRecording>> part) {
    if (part) {
        trace->parts.push_back(std::move(*part));
    } else if (!trace->error || trace->error->code == ErrorCode::not_found) {
        trace->error = part.error();
    }
    if (--trace->missing > 0) return;
    if (trace->parts.empty()) return end(trace, std::unexpected(*trace->error));
    TracedBlocks all{.began_ns = trace->parts.front()->began_ns};
    std::size_t count = 0;
    for (const auto& recording : trace->parts) count += recording->count;
    // Blocks are large: only those of the answer are copied.
    std::vector<const BlockTrace*> taken;
    taken.reserve(count);
    for (const auto& recording : trace->parts) {
        all.began_ns = std::min(all.began_ns, recording->began_ns);
        all.ended_ns = std::max(all.ended_ns, recording->ended_ns);
        for (std::size_t i = 0; i < recording->count; ++i) taken.push_back(&recording->blocks[i]);
    }
    std::ranges::stable_sort(taken, {}, &BlockTrace::taken_ns);
    all.is_full = taken.size() >= trace->request.blocks;
    if (all.is_full) taken.resize(static_cast<std::size_t>(trace->request.blocks));
    all.blocks.reserve(taken.size());
    for (const BlockTrace* const block : taken) all.blocks.push_back(*block);
    end(trace, std::move(all));
}

void BlockTraces::end(const std::shared_ptr<Running>& trace, Result<TracedBlocks> result) {
    std::erase(running_, trace);
    if (trace->done) std::exchange(trace->done, nullptr)(std::move(result));
}

void BlockTraces::fail_overdue() {
    const std::int64_t now_ns = clock_.now_ns();
    const std::vector<std::shared_ptr<Running>> all = running_;
    for (const auto& trace : all) {
        if (trace->deadline_ns > now_ns) continue;
        end(trace, fail(ErrorCode::timeout, "the data plane has not answered for 5 s after the end of the trace"));
    }
}

}  // namespace larder::cache
