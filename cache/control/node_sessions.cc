#include "cache/control/node_sessions.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <utility>

#include "cache/control/dataset_access.h"

namespace larder::cache {
namespace asio = boost::asio;

// The groups decide, and the names are for the error.
void NodeSessions::prepare(const std::string& name, const PeerCredentials& peer, std::function<void()> done) {
    const auto dataset = datasets_.find(name);
    if (!dataset) return done();
    const DatasetAccess& access = (*dataset)->record.access;
    const auto allowed = may_read_without_groups(access, peer.uid);
    if (allowed == true) return done();
    UserDirectory::Wanted wanted{.users = {peer.uid, access.owner}, .groups = {access.group}, .memberships = {}};
    if (!allowed) wanted.memberships.push_back({.uid = peer.uid, .gid = peer.gid, .group = access.group});
    users_.learn(wanted, std::move(done));
}

Result<std::shared_ptr<const DatasetVersion>> NodeSessions::open(const std::string& name, std::uint64_t version,
                                                                 const PeerCredentials& peer) {
    const auto dataset = datasets_.find(name);
    if (!dataset) return std::unexpected(dataset.error());
    if (auto online = datasets_.check_online(**dataset); !online) return std::unexpected(online.error());
    const DatasetAccess& access = (*dataset)->record.access;
    auto allowed = may_read_without_groups(access, peer.uid);
    if (!allowed) {
        const auto is_member = users_.is_member({.uid = peer.uid, .gid = peer.gid, .group = access.group});
        if (!is_member) {
            return fail(ErrorCode::unavailable,
                        "it depends on the groups of user " + users_.user_name(peer.uid) + " whether dataset \"" +
                            name + "\" may be read, and the name service of this machine does not answer: try again");
        }
        allowed = may_read_as(access, peer.uid, *is_member);
    }
    if (!*allowed) {
        return fail(ErrorCode::permission_denied, "user " + users_.user_name(peer.uid) + " may not read dataset \"" +
                                                      name + "\" (owner " + users_.user_name(access.owner) +
                                                      ", group " + users_.group_name(access.group) + ", mode " +
                                                      format_mode(access.mode) + ")");
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

Result<std::string> NodeSessions::explain(const std::string& name, std::uint64_t version, std::uint32_t block,
                                          const PeerCredentials& peer) {
    const auto opened = open(name, version, peer);
    if (!opened) return std::unexpected(opened.error());
    const protocol::Manifest& manifest = *(*opened)->manifest;
    const auto& place = datasets_.at(name).place;
    if (block >= manifest.block_count() || place == nullptr) return std::string();
    return place->problems().latest(manifest.object(manifest.block(block).object).path);
}

Result<std::shared_ptr<TokenBucket>> NodeSessions::bucket(const std::string& job, JobUser user) {
    return job_limits_.bucket(job, user, clock_.now_ns());
}

void NodeSessions::attach(SessionSetup setup) {
    const NodeDataset* dataset = datasets_.find(setup.dataset_id);
    if (dataset == nullptr) return;  // the dataset was removed meanwhile; destroying `setup` closes the socket
    dataset->shard->attach(std::move(setup));
}

void NodeSessions::slots_populated(std::uint64_t dataset_id, std::uint64_t session_id, std::uint64_t bytes,
                                   bool settled) {
    asio::post(control_, [=, this] {
        const NodeDataset* dataset = datasets_.find(dataset_id);
        if (dataset == nullptr) return;
        dataset->shard->slots_populated(session_id, bytes, settled);
    });
}

}  // namespace larder::cache
