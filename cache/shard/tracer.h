#pragma once

// A Tracer records the blocks of a few jobs for a short time, on request. It owns no block: fetches, misses and
// admissions name a trace by a TraceId, which outlives its recording without harm. A job that is not recorded costs one
// comparison per block. Lives on its shard's thread; allocates nothing while it records.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cache/remote.h"
#include "cache/shard/block_trace.h"

namespace larder::cache {

// Names one BlockTrace of one recording. False: the block is not traced.
struct TraceId {
    std::uint32_t recording = 0;
    std::uint32_t index = 0;
    explicit operator bool() const { return recording != 0; }
};

class Tracer {
public:
    // `clock` must outlive the Tracer.
    explicit Tracer(const Clock& clock) : clock_(clock) {}

    // Starts the recording, for `limit_ns`. Fails with already_exists if the job is recorded.
    Result<void> start(std::shared_ptr<TraceRecording> recording, std::int64_t limit_ns);
    // Ends the recording at the next `end_due`. Does nothing if it has ended.
    void stop(const TraceRecording& recording);
    // The number of the job's recording; 0: it is not recorded.
    std::uint32_t number_of(std::string_view job) const;
    // Ends recordings that are complete or whose time is over. Returns the time at which the next one is due;
    // `never_ns` if there is none.
    std::int64_t end_due(std::int64_t now_ns, std::int64_t never_ns) {
        return recordings_.empty() ? never_ns : end_some(now_ns, never_ns);
    }
    // Ends all recordings.
    void end_all();

    std::int64_t now_ns() const { return clock_.now_ns(); }
    // Returns a new trace of a block taken now; none if the recording is full. Sets `number` to 0 if the recording has
    // ended. The trace stays open until `leave`.
    TraceId begin(std::uint32_t& number, const BlockTrace& block);
    // The trace; null if the id names none, or its recording has ended.
    BlockTrace* find(TraceId id);
    // One more user, who also calls `leave`. The trace is at its end when all have left.
    void join(TraceId id);
    void leave(TraceId id);

    void open(TraceId id, TraceStep step, std::int64_t now_ns);
    void open(TraceId id, TraceStep step) { open(id, step, clock_.now_ns()); }
    // Closes the last span of this step that is open. Returns when the span began; 0 if none is open.
    std::int64_t close(TraceId id, TraceStep step, std::int64_t now_ns);
    void close(TraceId id, TraceStep step) { close(id, step, clock_.now_ns()); }
    void add(TraceId id, TraceSpan span);
    // Adds the parts of a read that began at `began_ns`.
    void add_parts(TraceId id, std::int64_t began_ns, const RemoteTimes& times);

private:
    TraceRecording* recording(std::uint32_t number) const;
    std::int64_t end_some(std::int64_t now_ns, std::int64_t never_ns);

    const Clock& clock_;
    std::vector<std::shared_ptr<TraceRecording>> recordings_;
    std::uint32_t last_number_ = 0;
};

}  // namespace larder::cache
