#include "cache/shard/tracer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"

namespace larder::cache {

std::string_view name(TraceStep step) {
    static constexpr std::array<std::string_view, kTraceSteps> kNames{
        "slot_wait",   "disk_wait",     "disk_read",     "peer_read", "token_wait",
        "remote_read", "transfer_wait", "earlier_tries", "connect",   "first_byte",
        "body",        "check",         "digest",        "compress",  "disk_write"};
    return kNames[static_cast<std::size_t>(step)];
}

bool is_after_delivery(TraceStep step) {
    return step == TraceStep::compress || step == TraceStep::disk_write;
}

bool is_part_of_read(TraceStep step) {
    return step >= TraceStep::transfer_wait && step <= TraceStep::body;
}

Result<void> Tracer::start(std::shared_ptr<TraceRecording> recording, std::int64_t limit_ns) {
    LARDER_ASSERT(!recording->blocks.empty() && recording->count == 0);
    if (number_of(recording->job) != 0) {
        return fail(ErrorCode::already_exists,
                    "job \"" + recording->job + "\" is being traced; try again when that has ended");
    }
    recording->number = ++last_number_;
    recording->began_ns = clock_.now_ns();
    recording->deadline_ns = recording->began_ns + limit_ns;
    recordings_.push_back(std::move(recording));
    return {};
}

void Tracer::stop(const TraceRecording& recording) {
    for (const auto& known : recordings_) {
        if (known.get() == &recording) known->deadline_ns = 0;
    }
}

std::uint32_t Tracer::number_of(std::string_view job) const {
    const auto found =
        std::ranges::find(recordings_, job, [](const auto& known) { return std::string_view(known->job); });
    return found == recordings_.end() ? 0 : (*found)->number;
}

TraceRecording* Tracer::recording(std::uint32_t number) const {
    for (const auto& known : recordings_) {
        if (known->number == number) return known.get();
    }
    return nullptr;
}

std::int64_t Tracer::end_some(std::int64_t now_ns, std::int64_t never_ns) {
    std::int64_t next_ns = never_ns;
    for (std::size_t i = 0; i < recordings_.size();) {
        TraceRecording& at = *recordings_[i];
        if (at.deadline_ns > now_ns && (!at.is_full() || at.open > 0)) {
            next_ns = std::min(next_ns, at.deadline_ns);
            ++i;
            continue;
        }
        const std::shared_ptr<TraceRecording> ended = std::exchange(recordings_[i], recordings_.back());
        recordings_.pop_back();
        ended->ended_ns = clock_.now_ns();
        if (ended->done) std::exchange(ended->done, nullptr)(ended);
    }
    return next_ns;
}

void Tracer::end_all() {
    for (const auto& known : recordings_) known->deadline_ns = 0;
    end_some(clock_.now_ns(), 0);
}

TraceId Tracer::begin(std::uint32_t& number, const BlockTrace& block) {
    TraceRecording* const found = recording(number);
    if (found == nullptr) number = 0;
    if (found == nullptr || found->is_full()) return {};
    const TraceId id{.recording = number, .index = static_cast<std::uint32_t>(found->count)};
    BlockTrace& trace = found->blocks[found->count++];
    trace = block;
    trace.users = 1;
    ++found->open;
    return id;
}

BlockTrace* Tracer::find(TraceId id) {
    TraceRecording* const found = id ? recording(id.recording) : nullptr;
    return found == nullptr ? nullptr : &found->blocks[id.index];
}

void Tracer::join(TraceId id) {
    if (BlockTrace* trace = find(id)) ++trace->users;
}

void Tracer::leave(TraceId id) {
    BlockTrace* const trace = find(id);
    if (trace == nullptr) return;
    LARDER_ASSERT(trace->users > 0);
    if (--trace->users == 0) --recording(id.recording)->open;
}

void Tracer::open(TraceId id, TraceStep step, std::int64_t now_ns) {
    add(id, {.step = step, .began_ns = now_ns});
}

std::int64_t Tracer::close(TraceId id, TraceStep step, std::int64_t now_ns) {
    BlockTrace* const trace = find(id);
    if (trace == nullptr) return 0;
    for (std::size_t i = trace->span_count; i-- > 0;) {
        TraceSpan& span = trace->spans[i];
        if (span.step != step || span.ended_ns != 0) continue;
        span.ended_ns = now_ns;
        return span.began_ns;
    }
    return 0;
}

void Tracer::add(TraceId id, TraceSpan span) {
    BlockTrace* const trace = find(id);
    if (trace == nullptr) return;
    if (trace->span_count == BlockTrace::kSpansMax) {
        ++trace->spans_lost;
    } else {
        trace->spans[trace->span_count++] = span;
    }
}

void Tracer::add_parts(TraceId id, std::int64_t began_ns, const RemoteTimes& times) {
    BlockTrace* const trace = find(id);
    if (trace == nullptr || times.tries == 0) return;
    trace->tries += times.tries;
    // A request that joined the read in mid-course waits for what is left of it.
    const auto part = [&](TraceStep step, std::int64_t from_ns, std::int64_t to_ns) {
        from_ns = std::max(from_ns, began_ns);
        if (from_ns < to_ns) add(id, {.step = step, .began_ns = from_ns, .ended_ns = to_ns});
    };
    part(TraceStep::transfer_wait, began_ns, times.first_try_ns);
    part(TraceStep::earlier_tries, times.first_try_ns, times.last_try_ns);
    if (times.is_new_connection) part(TraceStep::connect, times.last_try_ns, times.sent_ns);
    part(TraceStep::first_byte, times.sent_ns, times.first_byte_ns);
    part(TraceStep::body, times.first_byte_ns, times.ended_ns);
}

}  // namespace larder::cache
