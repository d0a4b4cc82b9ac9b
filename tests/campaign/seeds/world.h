#pragma once

// One simulated cluster: an allocator, nodes, a remote, jobs and faults, all from one seed. A run has three parts:
// faults and changes; then none, while everything has to converge; last, all jobs have to end. Not every seed has every
// kind of fault: a cluster that has all of them at once rarely gets far.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/campaign/seeds/controller.h"

namespace larder::campaign {

struct WorldOptions {
    std::uint64_t seed = 0;
    std::string directory;  // for the files of nodes; must exist
    bool prints = false;
    bool faults = true;
    std::string policy;  // empty: the seed draws one
};

struct WorldResult {
    std::string failure;  // empty: every invariant held
    std::uint64_t trace_hash = 0;
    double simulated_s = 0;
    std::uint64_t events = 0;
    std::uint64_t steps = 0;
    std::uint64_t faults = 0;
    std::uint64_t jobs_ended = 0;
    double remote_bytes = 0;
    std::uint64_t blocks_recovered = 0;
    std::array<std::uint64_t, protocol::kBlockSources> reads{};  // blocks that jobs got, by source
};

class SimulatedWorld {
public:
    explicit SimulatedWorld(const WorldOptions& options);
    ~SimulatedWorld();

    WorldResult run();

private:
    static constexpr std::int64_t kFaultsEnd_ns = 200 * kSecond_ns;
    static constexpr std::int64_t kConvergedBy_ns = 260 * kSecond_ns;
    static constexpr std::int64_t kEnd_ns = 300 * kSecond_ns;
    static constexpr std::int64_t kAllEndedBy_ns = 420 * kSecond_ns;
    // Jobs have to make a step in this time when there are no faults.
    static constexpr std::int64_t kStuck_ns = 30 * kSecond_ns;

    struct Kind {
        std::string name;
        std::function<void()> happen;
    };
    // A job that reads without a scheduler.
    struct Bare {
        std::unique_ptr<Program> program;
        std::unique_ptr<Training> training;
    };

    SimulatedNode& any_node() { return *nodes_[random_.below(nodes_.size())]; }
    std::size_t any_dataset() { return random_.below(datasets_.size()); }
    std::int64_t seconds(std::int64_t most) { return random_.between(100 * kMillisecond_ns, most * kSecond_ns); }
    std::unique_ptr<Program> make_program(const std::string& name);
    void choose_options();
    void choose_faults();
    void next_fault();
    void next_change();
    void submit();
    void start_bare();
    void sample();
    void heal();
    void check_converged();
    void check_ends();
    void send(const std::string& method, std::vector<std::string> path, const std::string& body);

    WorldOptions options_;
    Events events_;
    WorldRandom random_;
    NetworkFaults network_faults_;
    RemoteFaults remote_faults_;
    Network network_;
    std::vector<std::unique_ptr<SimulatedDataset>> datasets_;
    ControllerOptions controller_options_;
    std::uint64_t burst_bytes_ = 0;
    double bandwidth_ = 0;
    std::unique_ptr<Bandwidth> counted_;
    std::vector<std::unique_ptr<SimulatedNode>> nodes_;
    std::map<std::string, std::unique_ptr<Program>> programs_;
    std::unique_ptr<Surroundings> around_;
    std::unique_ptr<Machines> machines_;
    std::unique_ptr<Controller> controller_;
    std::map<int, Bare> bare_;
    int last_bare_ = 0;
    std::vector<Kind> faults_;
    std::vector<Kind> changes_;
    double fault_every_s_ = 0;
    std::uint64_t fault_count_ = 0;
    std::array<std::uint64_t, protocol::kBlockSources> reads_{};
    bool healed_ = false;
    std::uint64_t submitted_ = 0;
    std::map<scheduler::JobId, std::string> acknowledged_;  // the names of their programs
    std::set<scheduler::JobId> cancelled_;                  // asked to be cancelled, perhaps without an answer
    std::deque<std::pair<std::int64_t, double>> bandwidths_;
};

}  // namespace larder::campaign
