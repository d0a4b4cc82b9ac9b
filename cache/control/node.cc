#include "cache/control/node.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/nearest_name.h"
#include "base/server/logging.h"

namespace larder::cache {
namespace {

constexpr std::int64_t kAnswerWithinNs = 2'000'000'000;
constexpr std::int64_t kRetryAfterNs = 10'000'000'000;

}  // namespace

// --- sessions

Result<const NodeDataset*> Node::find(const std::string& name) const {
    const auto found = datasets_.find(name);
    if (found != datasets_.end()) return &found->second;
    if (changing_.contains(name)) {
        return fail(ErrorCode::unavailable,
                    "dataset \"" + name + "\" is being added or removed: try again when that is done");
    }
    if (const auto damaged = damaged_.find(name); damaged != damaged_.end()) {
        return fail(ErrorCode::corrupt, "dataset \"" + name + "\" is damaged: " + damaged->second.reason.message +
                                            "; `larder dataset rm` removes it, then it can be added again");
    }
    std::vector<std::string> known;
    known.reserve(datasets_.size());
    for (const auto& [other, dataset] : datasets_) known.push_back(other);
    const auto nearest = nearest_name(name, known);
    return fail(ErrorCode::not_found,
                "dataset \"" + name + "\" is unknown" +
                    (nearest ? "; did you mean \"" + *nearest + "\"?"
                             : ": `larder dataset ls` lists the datasets, `larder dataset add` adds one"));
}

const NodeDataset* Node::find(std::uint64_t dataset_id) const {
    const auto found =
        std::ranges::find_if(datasets_, [&](const auto& item) { return item.second.record.dataset_id == dataset_id; });
    return found == datasets_.end() ? nullptr : &found->second;
}

Result<std::shared_ptr<const DatasetVersion>> Node::open(const std::string& name, std::uint64_t version,
                                                         const PeerCredentials& peer) {
    const auto dataset = find(name);
    if (!dataset) return std::unexpected(dataset.error());
    if (auto online = check_online(**dataset); !online) return std::unexpected(online.error());
    const DatasetAccess& access = (*dataset)->record.access;
    if (!may_read(access, peer.uid, peer.gid)) {
        return fail(ErrorCode::permission_denied, "user " + user_name(peer.uid) + " may not read dataset \"" + name +
                                                      "\" (owner " + user_name(access.owner) + ", group " +
                                                      group_name(access.group) + ", mode " + format_mode(access.mode) +
                                                      ")");
    }
    const auto& versions = (*dataset)->versions;
    if (version == 0) return versions.rbegin()->second;
    const auto found = versions.find(version);
    if (found == versions.end()) {
        return fail(ErrorCode::not_found, "version " + std::to_string(version) + " of dataset \"" + name +
                                              "\" is no longer kept; the newest is " +
                                              std::to_string(versions.rbegin()->first));
    }
    return found->second;
}

Result<std::string> Node::explain(const std::string& name, std::uint64_t version, std::uint32_t block,
                                  const PeerCredentials& peer) {
    const auto opened = open(name, version, peer);
    if (!opened) return std::unexpected(opened.error());
    const protocol::Manifest& manifest = *(*opened)->manifest;
    const auto& place = datasets_.at(name).place;
    if (block >= manifest.block_count() || place == nullptr) return std::string();
    return place->problems().latest(manifest.object(manifest.block(block).object).path);
}

Result<void> Node::check_online(const NodeDataset& dataset) const {
    if (!dataset.offline) return {};
    return fail(ErrorCode::unavailable,
                "dataset \"" + dataset.record.definition.name + "\" is not served: " + dataset.offline->message);
}

Result<std::shared_ptr<TokenBucket>> Node::bucket(const std::string& job) {
    return job_limits_.bucket(job, clock_.now_ns());
}

void Node::attach(SessionSetup setup) {
    const NodeDataset* dataset = find(setup.dataset_id);
    if (dataset == nullptr) return;  // the dataset was removed meanwhile; destroying `setup` closes the socket
    auto shared_setup = std::make_shared<SessionSetup>(std::move(setup));
    dataset->shard->post([shared_setup](Shard& shard) { shard.attach(std::move(*shared_setup)); });
}

void Node::slots_populated(std::uint64_t dataset_id, std::uint64_t session_id, std::uint64_t bytes, bool settled) {
    post_control_([=, this] {
        const NodeDataset* dataset = find(dataset_id);
        if (dataset == nullptr) return;
        dataset->shard->post([=](Shard& shard) { shard.slots_populated(session_id, bytes, settled); });
    });
}

// --- statistics of the data plane

struct Node::Gathering {
    ShardStatistics all;
    std::size_t missing = 0;
    std::int64_t deadline_ns = 0;
    std::function<void(Result<ShardStatistics>)> done;
};

void Node::collect(std::function<void(Result<ShardStatistics>)> done) {
    auto gathering = std::make_shared<Gathering>();
    gathering->missing = shards_.size();
    gathering->deadline_ns = clock_.now_ns() + kAnswerWithinNs;
    gathering->done = std::move(done);
    gatherings_.push_back(gathering);
    for (const auto& shard : shards_) {
        shard->post([this, gathering](Shard& this_shard) {
            auto part = std::make_shared<ShardStatistics>(this_shard.statistics());
            post_control_([this, gathering, part] {
                ShardStatistics& all = gathering->all;
                std::ranges::move(part->datasets, std::back_inserter(all.datasets));
                std::ranges::move(part->jobs, std::back_inserter(all.jobs));
                all.protocol_violations += part->protocol_violations;
                all.scans += part->scans;
                all.device = part->device;
                if (--gathering->missing > 0 || !gathering->done) return;
                std::erase(gatherings_, gathering);
                std::exchange(gathering->done, nullptr)(std::move(all));
            });
        });
    }
}

void Node::run_periodic_work() {
    const std::int64_t now_ns = clock_.now_ns();
    const auto overdue =
        std::ranges::partition(gatherings_, [&](const auto& gathering) { return gathering->deadline_ns > now_ns; });
    const std::vector<std::shared_ptr<Gathering>> late(overdue.begin(), overdue.end());
    gatherings_.erase(overdue.begin(), gatherings_.end());
    for (const auto& gathering : late) {
        std::exchange(gathering->done, nullptr)(fail(ErrorCode::timeout, "the data plane has not answered for 2 s"));
    }
    retry_offline();
    send_datasets_to_peers();
    collect([this](Result<ShardStatistics> statistics) {
        if (!statistics) return;
        rates_.sample(*statistics, clock_.now_ns());
        job_limits_.update_idle_jobs(*statistics, clock_.now_ns());
        drop_old_versions(*statistics);
        disk_reports_.update(statistics->datasets, clock_.now_ns());
        used_.clear();
        for (const DatasetStatistics& dataset : statistics->datasets) {
            const StoreUsage& usage = dataset.usage;
            used_[dataset.dataset_id] = {.bytes = {.memory_bytes = usage.memory_bytes, .disk_bytes = usage.disk_bytes},
                                         .sessions = dataset.sessions};
        }
    });
}

void Node::send_datasets_to_peers() {
    if (peers_ == nullptr) return;
    std::vector<PeerDataset> served;
    for (const auto& [name, dataset] : datasets_) {
        if (dataset.offline) continue;
        const auto& manifest = dataset.newest().manifest;
        served.push_back({.name = name,
                          .dataset_id = dataset.record.dataset_id,
                          .shard = dataset.shard,
                          .manifest = manifest,
                          .fingerprint = fingerprint_of(*manifest)});
    }
    peers_->set_datasets(std::move(served));
}

void Node::set_peers(std::vector<std::string> endpoints) {
    if (peers_ != nullptr) peers_->set_others(std::move(endpoints));
}

void Node::retry_offline() {
    if (clock_.now_ns() < offline_retry_ns_) return;
    offline_retry_ns_ = clock_.now_ns() + kRetryAfterNs;
    for (const auto& [name, dataset] : datasets_) {
        if (!dataset.offline) continue;
        // Probe the remote first, on a thread that may block on a dead mount or on credentials.
        files_->post([this, name, url = std::string(dataset.newest().manifest->url()),
                      options = dataset.record.definition.remote] {
            const auto place = RemotePlace::open(url, options, transfers_.get());
            if (!place) return;
            const RemoteUrl& remote_url = (*place)->url();
            if (remote_url.scheme == RemoteScheme::file && ::access(remote_url.root.c_str(), R_OK | X_OK) != 0) return;
            post_control_([this, name, place = *place] {
                const auto found = datasets_.find(name);
                if (found == datasets_.end() || !found->second.offline) return;
                found->second.place = place;
                hand_over(found->second);
            });
        });
    }
}

}  // namespace larder::cache
