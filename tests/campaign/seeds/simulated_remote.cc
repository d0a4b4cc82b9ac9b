#include "tests/campaign/seeds/simulated_remote.h"

#include <cerrno>

namespace larder::campaign {

using protocol::BlockStatus;

void SimulatedRemote::read(cache::RemoteRead& read) {
    if (free_.empty()) free_.push_back(&pool_.emplace_back());
    Pending& pending = *free_.back();
    free_.pop_back();
    pending.remote = this;
    pending.read = &read;
    pending.fails = random_.chance(faults_.error);
    pending.done = [](cache::Operation& operation, std::int32_t) noexcept {
        auto& ended = static_cast<Pending&>(operation);
        SimulatedRemote& remote = *ended.remote;
        cache::RemoteRead& request = *ended.read;
        const BlockStatus status = remote.serve(ended);
        remote.free_.push_back(&ended);
        request.done(request, status, status == BlockStatus::remote_failed ? EIO : 0);
    };
    bandwidth_.take(read.into.size());
    std::int64_t delay_ns = random_.between(faults_.delay_min_ns, faults_.delay_max_ns);
    if (random_.chance(faults_.slow)) delay_ns += random_.between(0, 3 * kSecond_ns);
    device_.start_timer(delay_ns, pending);
}

// A refused read costs nothing: what was paid for it is refunded.
BlockStatus SimulatedRemote::serve(const Pending& ended) {
    cache::RemoteRead& read = *ended.read;
    if (read.payer != nullptr && read.into.size() > 1 && random_.chance(faults_.retried)) {
        read.extra_bytes = 1 + random_.below(read.into.size() - 1);
        read.payer->pay(read.extra_bytes, clock_.now_ns());
    }
    BlockStatus status = BlockStatus::ok;
    const SimulatedObject* object = dataset_.find(read.path);
    if (ended.fails) {
        status = BlockStatus::remote_failed;
    } else if (object == nullptr) {
        status = BlockStatus::object_missing;
    } else if (object->bytes != read.object_bytes || object->mtime_ns != read.object_mtime_ns) {
        status = BlockStatus::object_changed;
    } else if (read.offset != 0 || read.into.size() != object->bytes) {
        status = BlockStatus::object_truncated;
    }
    if (status != BlockStatus::ok) {
        bandwidth_.refund(read.into.size());
        return status;
    }
    dataset_.note_read(node_, static_cast<std::uint32_t>(std::stoul(object->path)));
    fill_content(read.into, object->seed);
    const bool was_wrong = wrong_last_.erase(object->path) > 0;
    if (dataset_.checksums() && !was_wrong && random_.chance(faults_.wrong_bytes)) {
        wrong_last_.insert(object->path);
        read.into[random_.below(read.into.size())] ^= std::byte{0x40};
    }
    return status;
}

}  // namespace larder::campaign
