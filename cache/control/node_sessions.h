#pragma once

// The node as the handshake sees it: which version a client may read, the bucket of its job, and the shard that takes
// its session. Control thread, unless noted in SessionHost.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "cache/control/datasets.h"
#include "cache/control/handshake.h"
#include "cache/control/job_limits.h"
#include "cache/control/user_directory.h"

namespace larder::cache {

class NodeSessions final : public SessionHost {
public:
    // The arguments must outlive the NodeSessions and all sessions.
    NodeSessions(const Clock& clock, Datasets& datasets, JobLimits& job_limits, UserDirectory& users,
                 boost::asio::io_context& control)
        : clock_(clock), datasets_(datasets), job_limits_(job_limits), users_(users), control_(control) {}

    void prepare(const std::string& dataset, const PeerCredentials& peer, std::function<void()> done) override;
    Result<std::shared_ptr<const DatasetVersion>> open(const std::string& dataset, std::uint64_t version,
                                                       const PeerCredentials& peer) override;
    Result<std::shared_ptr<TokenBucket>> bucket(const std::string& job, JobUser user) override;
    void attach(SessionSetup setup) override;
    void slots_populated(std::uint64_t dataset_id, std::uint64_t session_id, std::uint64_t bytes,
                         bool settled) override;
    Result<std::string> explain(const std::string& dataset, std::uint64_t version, std::uint32_t block,
                                const PeerCredentials& peer) override;

private:
    const Clock& clock_;
    Datasets& datasets_;
    JobLimits& job_limits_;
    UserDirectory& users_;
    boost::asio::io_context& control_;
};

}  // namespace larder::cache
