#pragma once

// A simulated node: the data plane of a daemon (Shard, its stores and index, its sessions) on a simulated device, and
// what its control thread does about the allocator and its peers. The parts of the control thread that own sockets and
// threads (AllocatorAgent, PeerDirectory, PeerServer) are written again here around the same functions: the report,
// the answer, job limits, and the answers about held blocks.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/server/http.h"
#include "cache/control/agent.h"
#include "cache/control/job_limits.h"
#include "cache/control/promised_floor.h"
#include "cache/peers/held_answer.h"
#include "cache/shard/shard.h"
#include "cache/store/index.h"
#include "cache/store/recovery.h"
#include "tests/campaign/seeds/bandwidth.h"
#include "tests/campaign/seeds/client.h"
#include "tests/campaign/seeds/dataset.h"
#include "tests/campaign/seeds/network.h"
#include "tests/campaign/seeds/simulated_device.h"
#include "tests/campaign/seeds/simulated_remote.h"

namespace larder::campaign {

class SimulatedNode;

// The parts that all nodes share.
struct Surroundings {
    Events& events;
    WorldRandom& random;
    Network& network;
    Bandwidth& bandwidth;
    std::vector<std::unique_ptr<SimulatedDataset>>& datasets;
    const RemoteFaults& remote_faults;
    const NetworkFaults& network_faults;
    std::vector<std::unique_ptr<SimulatedNode>>& nodes;
    // Carries a request to the allocator; `respond` may be called later, or never.
    std::function<void(const HttpRequest& request, const std::function<void(const HttpResponse&)>& respond)> ask;
    std::uint64_t* reads = nullptr;  // counts of blocks that jobs got, by protocol::BlockSource
};

struct NodeOptions {
    int number = 0;
    std::string directory;
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;
    std::uint64_t burst_bytes = 0;
    double floor_bytes_per_second = 0;
    std::uint32_t gpus = 4;
    bool lends = false;
};

class SimulatedNode {
public:
    SimulatedNode(const NodeOptions& options, const Surroundings& around);
    ~SimulatedNode();

    void start();
    // Ends the daemon as SIGKILL does.
    void kill();
    void cut_power();
    void freeze(std::int64_t for_ns);
    void jump_clock(std::int64_t by_ns);
    // Reads the remote's present edition of a dataset.
    void reindex(std::size_t dataset);
    // Sets a dataset's quota by hand, or gives it back to the allocator.
    void hold_quota(std::size_t dataset, std::optional<cache::Quota> quota);

    const std::string& name() const { return name_; }
    int number() const { return options_.number; }
    bool up() const { return shard_ != nullptr; }
    bool frozen() const { return events().now_ns() < frozen_until_ns_; }
    bool answers() const { return up() && !frozen(); }
    std::int64_t now_ns() const { return clock_.now_ns(); }
    // The newest edition that the node has indexed.
    std::size_t newest_edition(std::size_t dataset) const { return datasets_[dataset].versions.rbegin()->first; }
    bool has_edition(std::size_t dataset, std::size_t edition) const {
        return datasets_[dataset].versions.contains(edition);
    }

    // Opens a session for a process of a job. Null if the daemon does not answer, or refuses.
    std::unique_ptr<Client> attach(const std::string& job, std::uint32_t uid, std::size_t dataset, std::size_t edition,
                                   std::uint32_t slot_pages, std::function<void()> on_progress);
    void detach(std::uint64_t session_id) { progress_.erase(session_id); }

    // The rates of the buckets of all jobs with sessions.
    double rates_in_force() const;
    // True if the node has, or had, a lease that the allocator counts.
    bool was_ever_leased() const { return leased() || floor_on_disk_.has_value(); }
    // True once a lease is in force that the allocator knows of; false after a start until then.
    bool leased() const { return lease_applied_ != 0; }
    bool lease_in_force() const { return leased() && status_.lease_expires_ns > clock_.now_ns(); }
    std::uint64_t jobs_with_sessions() const;
    const cache::AgentStatus& status() const { return status_; }
    std::uint64_t instances() const { return instances_; }
    void set_disk_faults(const DiskFaults& faults) {
        disk_faults_ = faults;
        disk_was_faulty_ = true;
    }
    void end_disk_faults() { disk_faults_ = {}; }
    // Blocks that came back after a kill, in all restarts.
    std::uint64_t blocks_recovered() const { return blocks_recovered_; }

    // Answers a peer's request. `answer` is called later, or never.
    void lend(const std::string& dataset, const std::string& fingerprint, std::uint32_t block,
              std::function<void(std::string record)> answer);
    bool take_offered(const std::string& dataset, const std::string& fingerprint, std::uint32_t block,
                      const std::string& record);
    std::optional<std::string> held_answer(const std::string& dataset, const std::string& fingerprint,
                                           const std::string& since) const;
    // Runs now, or when the machine runs again. Does nothing if the daemon was restarted meanwhile.
    void when_awake(std::function<void()> run);
    void wake() { wake_at(events().now_ns()); }

private:
    struct Dataset {
        SimulatedDataset* data = nullptr;
        std::uint64_t id = 0;
        std::map<std::size_t, std::shared_ptr<const protocol::Manifest>> versions;  // by edition; on disk
        std::uint64_t version_count = 0;
        cache::Quota quota;  // as saved
        bool held = false;
        bool assigned = false;
        std::map<std::size_t, std::int64_t> needed_ns;
        std::set<std::size_t> kept;
        std::map<std::uint32_t, std::int64_t> seen_ns;  // by block id: when the block was last held, read or offered
    };
    struct LastAnswer {
        cache::HeldState state;
        std::uint64_t room_bytes = 0;
        std::vector<std::uint8_t> bits;
        bool answered = false;  // in this round
    };

    Events& events() const { return around_.events; }
    void after(std::int64_t delay_ns, std::function<void()> run);
    void wake_at(std::int64_t time_ns);
    void run_shard();
    void tick();
    void end_instance(bool power_is_cut);
    void every_second();
    void note_held();
    void check_recovered(const Dataset& dataset, const std::vector<cache::RecoveredSegment>& segments);
    void lower_dealt_quotas(std::uint64_t cache::Quota::* tier, std::uint64_t capacity);
    void drop_old_versions(const cache::ShardStatistics& statistics);

    void report();
    void handle_answer(const HttpResponse* response, std::int64_t sent_ns);
    Result<void> apply(const HttpResponse& response, std::int64_t sent_ns);
    Result<void> apply_quotas(const std::map<std::string, cache::Quota>& quotas);
    void note_buckets();

    void ask_peers();
    void hand_over_peers();
    void take_held_answer(int peer, const std::string& key, std::uint32_t blocks,
                          const std::optional<std::string>& body);
    cache::PeerBlocks peer_blocks(const Dataset& dataset, const cache::HeldBlocks& own);
    const Dataset* find_lent(const std::string& dataset, const std::string& fingerprint) const;

    NodeOptions options_;
    std::string name_;
    Surroundings around_;
    MachineClock clock_;
    std::vector<Dataset> datasets_;
    std::uint64_t instances_ = 0;
    std::uint64_t blocks_recovered_ = 0;
    DiskFaults disk_faults_;
    bool disk_was_faulty_ = false;  // or its power was cut
    std::optional<double> floor_on_disk_;
    std::int64_t saved_ns_ = 0;  // when the last write of a floor ends
    std::int64_t frozen_until_ns_ = 0;
    std::int64_t ended_ns_ = 0;
    std::deque<std::function<void()>> deferred_;
    std::int64_t next_wake_ns_ = kNever_ns;
    bool running_ = false;

    // This instance of the daemon:
    std::unique_ptr<cache::Index> index_;
    std::unique_ptr<SimulatedDevice> device_;
    std::unique_ptr<cache::Shard> shard_;
    std::unique_ptr<cache::JobLimits> limits_;
    std::unique_ptr<cache::NodeReporter> reporter_;
    std::map<std::string, std::weak_ptr<cache::TokenBucket>> buckets_;
    std::uint64_t live_buckets_ = 0;
    std::map<std::uint64_t, std::function<void()>> progress_;  // by session id
    std::map<std::uint64_t, std::string> session_jobs_;
    cache::AgentStatus status_;
    unsigned protocol_ = 1;
    std::optional<std::uint64_t> peers_etag_;
    std::uint64_t lease_applied_ = 0;
    std::optional<cache::PromisedFloor> floor_;
    std::deque<double> floors_to_save_;
    std::int64_t reported_ns_ = 0;
    bool report_early_ = false;
    bool report_in_flight_ = false;
    std::uint64_t report_number_ = 0;
    std::int64_t second_ns_ = 0;
    std::int64_t index_flush_ns_ = 0;
    std::int64_t quota_by_hand_ns_ = 0;
    bool was_frozen_ = false;
    std::vector<int> peers_;
    std::map<std::pair<int, std::string>, LastAnswer> last_answers_;  // by peer, dataset's name and fingerprint
    std::map<std::string, std::shared_ptr<const cache::PeerBlocks>> last_handovers_;
};

}  // namespace larder::campaign
