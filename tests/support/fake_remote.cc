#include "tests/support/fake_remote.h"

#include <algorithm>
#include <cstring>

namespace larder::test {

using protocol::BlockStatus;

void FakeRemote::put(const std::string& path, std::string content, std::int64_t mtime_ns) {
    objects_[path] = {std::move(content), mtime_ns};
}

void FakeRemote::read(cache::RemoteRead& read) {
    if (free_.empty()) free_.push_back(&pool_.emplace_back());
    Pending& pending = *free_.back();
    free_.pop_back();
    pending.remote = this;
    pending.read = &read;
    pending.done = [](cache::Operation& operation, std::int32_t) noexcept {
        auto& ended = static_cast<Pending&>(operation);
        FakeRemote& remote = *ended.remote;
        cache::RemoteRead& request = *ended.read;
        remote.free_.push_back(&ended);
        --remote.in_flight_;
        const Outcome outcome = remote.serve(request);
        request.done(request, outcome.status, outcome.system_errno);
    };
    ++reads_;
    ++in_flight_;
    device_.start_timer(delay_ns_, pending);
}

FakeRemote::Outcome FakeRemote::serve(const cache::RemoteRead& read) {
    for (FakeRemoteFault& fault : faults_) {
        if (fault.times == 0 || read.path.find(fault.path_part) == std::string_view::npos) continue;
        if (fault.skip > 0) {
            --fault.skip;
            continue;
        }
        --fault.times;
        return {fault.status, fault.status == BlockStatus::remote_failed ? fault.system_errno : 0};
    }
    const auto found = objects_.find(read.path);
    if (found == objects_.end()) return {BlockStatus::object_missing, 0};
    const auto& [content, mtime_ns] = found->second;
    if (content.size() != read.object_bytes || mtime_ns != read.object_mtime_ns)
        return {BlockStatus::object_changed, 0};
    if (read.offset + read.into.size() > content.size()) return {BlockStatus::object_truncated, 0};
    std::memcpy(read.into.data(), content.data() + read.offset, read.into.size());
    bytes_delivered_ += read.into.size();
    return {BlockStatus::ok, 0};
}

}  // namespace larder::test
