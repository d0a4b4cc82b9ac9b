#include "scheduler/engines/slurm/placed_environment.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "scheduler/engines/slurm/placed_jobs.h"
#include "scheduler/engines/slurm/slurm_state.h"

namespace larder::scheduler::slurm {
namespace {

std::uint64_t whole(const std::string& text) {
    return std::strtoull(text.c_str(), nullptr, 10);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> placed_environment(
    const std::function<std::string(const char* name)>& variable, const std::vector<std::string>& partitions,
    const std::string& socket) {
    if (std::ranges::find(partitions, variable("SLURM_JOB_PARTITION")) == partitions.end()) return {};
    const std::string array = variable("SLURM_ARRAY_JOB_ID");
    const std::string key = array.empty() ? variable("SLURM_JOB_ID") : array + "_" + variable("SLURM_ARRAY_TASK_ID");
    const std::vector<std::string> nodes = expand_nodes(variable("SLURM_JOB_NODELIST"));
    std::string names;
    for (const std::string& node : nodes) names += (names.empty() ? "" : ",") + node;
    // Gangs that share their first node need ports of their own.
    constexpr std::uint64_t kFirstPort = 20'000;
    constexpr std::uint64_t kPorts = 10'000;
    const std::uint64_t number = whole(variable("SLURM_JOB_ID"));
    std::vector<std::pair<std::string, std::string>> variables{
        {"LARDER_JOB", PlacedJobs::name_of(key)},
        {"LARDER_ATTEMPT", std::to_string(whole(variable("SLURM_RESTART_COUNT")) + 1)},
        {"LARDER_GPUS", std::to_string(whole(variable("SLURM_GPUS_ON_NODE")) * nodes.size())},
        {"LARDER_NODES", names},
        {"LARDER_NODE_COUNT", std::to_string(nodes.size())},
        {"LARDER_NODE_RANK", variable("SLURM_NODEID")},
        {"MASTER_ADDR", nodes.empty() ? "" : nodes.front()},
        {"MASTER_PORT", std::to_string(kFirstPort + number % kPorts)}};
    if (const std::string account = variable("SLURM_JOB_ACCOUNT"); !account.empty()) {
        variables.emplace_back("LARDER_TENANT", account);
    }
    if (!socket.empty()) variables.emplace_back("LARDER_SOCKET", socket);
    return variables;
}

}  // namespace larder::scheduler::slurm
