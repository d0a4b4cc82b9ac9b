#pragma once

// A BlockTrace tells of one block that a job asked for: the steps of its way, with their times. Plain values that the
// shard's Tracer (tracer.h) fills in, and that the control plane reads once the recording has ended.
//
// Times are of the steady clock, read when the shard's thread starts a step or sees that it has ended. So the end of a
// read includes the time until that thread looks at its ring again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/protocol/wire.h"

namespace larder::cache {

enum class TraceStep : std::uint8_t {
    slot_wait,    // for slot memory from the kernel, or for pages that a write or a peer still reads
    disk_wait,    // for one of the places of disk reads
    disk_read,    // from the store's disk
    peer_read,    // from another node's cache
    token_wait,   // for the remote bandwidth of the job, or of another job that wants the block too
    remote_read,  // from the remote
    // Parts of a read from a remote or a peer over HTTP.
    transfer_wait,  // for one of the places of requests at the endpoint
    earlier_tries,  // tries that failed, and the pauses after them; with a hedge that won, the try it overtook
    connect,        // with TLS. None if a kept connection is used
    first_byte,     // from sending the request to the first byte of the answer
    body,           // from the first byte to the last
    // Steps of every source.
    check,       // of the CRC
    digest,      // of the SHA-256, in the background
    compress,    // in the background. This and the next may end after the block was delivered
    disk_write,  // to the store's disk
};
inline constexpr std::size_t kTraceSteps = 15;
std::string_view name(TraceStep step);
// True for the steps that no reader waits for: those of admission.
bool is_after_delivery(TraceStep step);
// True for the parts of remote_read and peer_read, whose time is in that of the read.
bool is_part_of_read(TraceStep step);

struct TraceSpan {
    TraceStep step = TraceStep::disk_read;
    std::int64_t began_ns = 0;
    std::int64_t ended_ns = 0;  // 0: goes on
};

enum class Admitted : std::uint8_t { no, memory, disk };

struct BlockTrace {
    static constexpr std::size_t kSpansMax = 20;  // further spans are counted only

    std::uint64_t dataset_id = 0;
    std::uint32_t block = 0;  // index in the version that the job reads
    std::uint32_t payload_bytes = 0;
    std::uint32_t epoch = 0;
    std::int64_t taken_ns = 0;      // from the session's ring
    std::int64_t delivered_ns = 0;  // 0: not yet
    protocol::BlockStatus status = protocol::BlockStatus::ok;
    protocol::BlockSource source = protocol::BlockSource::none;
    int system_errno = 0;
    Admitted admitted = Admitted::no;
    bool joined = false;      // waited for a read that another request had begun
    std::uint32_t tries = 0;  // of requests to the remote or a peer; 0: none, or unknown
    std::uint32_t span_count = 0;
    std::uint32_t spans_lost = 0;
    std::array<TraceSpan, kSpansMax> spans{};
    std::uint32_t users = 0;  // the request until its delivery, and an admission until its end
};

// A recording of one job's blocks on one shard. Whoever asks for the recording makes it, with all of its memory, so
// that the shard allocates nothing while it records. `done` runs on the shard's thread when the recording has ended:
// when `blocks` is full and each block has come to its end, or at the deadline. Blocks then may be in mid-course.
struct TraceRecording {
    TraceRecording(std::string of_job, std::size_t blocks_max) : job(std::move(of_job)), blocks(blocks_max) {}

    std::string job;
    std::vector<BlockTrace> blocks;  // the first `count` are used
    std::size_t count = 0;
    std::size_t open = 0;  // blocks that have not come to their end
    std::uint32_t number = 0;
    std::int64_t began_ns = 0;
    std::int64_t deadline_ns = 0;
    std::int64_t ended_ns = 0;
    std::function<void(std::shared_ptr<TraceRecording> ended)> done;

    bool is_full() const { return count == blocks.size(); }
};

}  // namespace larder::cache
