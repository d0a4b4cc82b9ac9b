#include "scheduler/live/live_config.h"

#include <algorithm>
#include <array>

#include "base/server/accounts.h"
#include "base/server/config_values.h"
#include "base/units.h"

namespace larder::scheduler {
namespace {

constexpr std::int64_t kSecond_ns = 1'000'000'000;
constexpr std::int64_t kLongest_ns = std::int64_t{365} * 24 * 3600 * kSecond_ns;
constexpr std::string_view kTime = "a time such as \"6 m\" or \"1 h\", in text";
constexpr std::string_view kGpus = "a whole number, 1 to 64";

using Rule = ConfigRule<LiveConfig>;

bool set_seconds(double& into_s, const ConfigValue& value) {
    std::int64_t duration_ns = 0;
    if (!set_config_duration<kSecond_ns / 100, kLongest_ns>(duration_ns, value)) return false;
    into_s = static_cast<double>(duration_ns) * 1e-9;
    return true;
}

// Reads rising times such as "1 h, 10 h".
bool set_queues(std::vector<double>& into, const ConfigValue& value) {
    const std::string* text = config_text_of(value);
    if (text == nullptr) return false;
    into.clear();
    for (std::size_t at = 0; at <= text->size();) {
        const std::size_t comma = std::min(text->find(',', at), text->size());
        std::string part = text->substr(at, comma - at);
        part.erase(0, part.find_first_not_of(' '));
        part.erase(part.find_last_not_of(' ') + 1);
        const auto duration_ns = parse_duration_ns(part);
        if (!duration_ns || *duration_ns <= 0) return false;
        into.push_back(static_cast<double>(*duration_ns) * 1e-9);
        at = comma + 1;
    }
    return std::ranges::is_sorted(into) && !into.empty();
}

bool set_promote_after(double& into, const ConfigValue& value) {
    return set_config_number<0, 1'000'000>(into, value) && into > 0;
}

bool set_url(std::string& url, const ConfigValue& value) {
    return set_config_text(url, value) && url.find("://") != std::string::npos;
}

bool set_engine(bool& has_agent, const ConfigValue& value) {
    std::string name;
    if (!set_config_text(name, value) || (name != "local" && name != "agent")) return false;
    has_agent = name == "agent";
    return true;
}

bool set_nodes(bool& agent_has_nodes, const ConfigValue& value) {
    std::string name;
    if (!set_config_text(name, value) || (name != "config" && name != "agent")) return false;
    agent_has_nodes = name == "agent";
    return true;
}

bool set_policy(std::string& into, const ConfigValue& value) {
    const auto known = policy_names();
    return set_config_text(into, value) && std::ranges::find(known, std::string_view(into)) != known.end();
}

constexpr std::array kRules{
    Rule{{"scheduler.gpus", kGpus, "GPUs of this machine on which to run submitted jobs"},
         set_member<set_config_count<1, kGpusPerNodeMax>, &LiveConfig::gpus>},
    Rule{{"scheduler.gpu_type", "a name, in text", "type of the GPUs of nodes that do not set their own; default: gpu"},
         set_member<set_config_text, &LiveConfig::gpu_type>},
    Rule{{"scheduler.node.NAME.gpus", kGpus,
          "GPUs of one node, a part of this machine's GPUs; in place of scheduler.gpus"},
         set_entry<set_config_count<1, kGpusPerNodeMax>, &LiveConfig::nodes, &NodeConfig::gpus>},
    Rule{{"scheduler.node.NAME.gpu_type", "a name, in text", "type of the node's GPUs; default: scheduler.gpu_type"},
         set_entry<set_config_text, &LiveConfig::nodes, &NodeConfig::gpu_type>},
    Rule{{"scheduler.nodes", "\"config\" or \"agent\"",
          "who names the nodes and their GPUs: this file, or the agent of a cluster manager; default: config"},
         set_member<set_nodes, &LiveConfig::agent_has_nodes>},
    Rule{{"scheduler.cells", kConfigPath,
          "file of cells with guarantees for tenants; it names nodes and GPUs in place of scheduler.gpus and "
          "scheduler.node"},
         set_member<set_config_path, &LiveConfig::cells>},
    Rule{{"scheduler.policy", "the name of a policy, in text",
          "policy that decides which job runs next; default: fifo-backfill"},
         set_member<set_policy, &LiveConfig::policy>},
    Rule{{"scheduler.storage_blind", kConfigFlag, "decide as if every job ran at f*, for comparison"},
         set_member<set_config_flag, &LiveConfig::storage_blind>},
    Rule{{"scheduler.directory", kConfigPath, "directory for the queue's record and jobs' files; default: state"},
         set_member<set_config_path, &LiveConfig::directory>},
    Rule{{"scheduler.socket", kConfigPath, "socket of this machine's larderd, given to jobs in LARDER_SOCKET"},
         set_member<set_config_path, &LiveConfig::socket>},
    Rule{{"scheduler.history", "a whole number, 1 to 1000000", "ended jobs to keep; default: 10000"},
         set_member<set_config_count<1, 1'000'000>, &LiveConfig::history>},
    Rule{{"scheduler.engine", "\"local\" or \"agent\"",
          "what runs jobs: this machine, or the agent of a cluster manager; default: local"},
         set_member<set_engine, &LiveConfig::has_agent>},
    Rule{{"scheduler.start_timeout", kTime,
          "time for a job to begin after it got its GPUs, or to be resized; default: none"},
         set_member<set_seconds, &LiveConfig::start_timeout_s>},
    Rule{{"scheduler.output_url", "a URL, in text",
          "engine \"agent\": where people find a job's output; {job} and {attempt} stand for numbers"},
         set_member<set_url, &LiveConfig::output_url>},
    Rule{{"scheduler.runner", kConfigPath, "the program that runs one job; default: larder-runner beside this one"},
         set_member<set_config_path, &LiveConfig::runner>},
    Rule{{"scheduler.round", kTime, "policies that share by time: time that a decision stands; default: 6 m"},
         set_member<set_seconds, &LiveConfig::policy_options, &PolicyOptions::round_s>},
    Rule{{"scheduler.lease", kTime, "policies with leases: time that a job is promised its GPUs; default: 20 m"},
         set_member<set_seconds, &LiveConfig::policy_options, &PolicyOptions::lease_s>},
    Rule{{"scheduler.interval", kTime, "interval of tenants' accounts of GPU time; default: 1 h"},
         set_member<set_seconds, &LiveConfig::policy_options, &PolicyOptions::interval_s>},
    Rule{{"scheduler.window_intervals", "a whole number, 1 to 1000", "intervals that fairness looks back; default: 24"},
         set_member<set_config_count<1, 1000>, &LiveConfig::policy_options, &PolicyOptions::window_intervals>},
    Rule{{"scheduler.starve", kTime, "astraea: a job that waited this long without GPUs goes first; default: 6 h"},
         set_member<set_seconds, &LiveConfig::policy_options, &PolicyOptions::starve_s>},
    Rule{{"scheduler.queues", "rising times such as \"1 h, 10 h\", in text",
          "las: GPU time after which a job goes down a queue; default: 1 h"},
         set_member<set_queues, &LiveConfig::policy_options, &PolicyOptions::queue_gpu_s>},
    Rule{{"scheduler.promote_after", "a number above 0, at most 1000000",
          "las: a job that waited this many times its run time moves up again; default: 8"},
         set_member<set_promote_after, &LiveConfig::policy_options, &PolicyOptions::promote_after>},
    Rule{{"scheduler.exact", kConfigFlag, "chronus: admit jobs by an integer program"},
         set_member<set_config_flag, &LiveConfig::policy_options, &PolicyOptions::exact>},
};

// The tenants' keys come after the others in live_config_keys().
Result<void> apply(LiveConfig& config, ConfigSetting setting) {
    if (setting.rule < kRules.size()) return apply_setting(config, std::span<const Rule>(kRules), setting);
    setting.rule -= kRules.size();
    return apply_setting(config.tenants, tenant_rules(), setting);
}

}  // namespace

std::vector<ConfigKey> live_config_keys() {
    std::vector<ConfigKey> keys = keys_of(std::span<const Rule>(kRules));
    for (const auto& rule : tenant_rules()) keys.push_back(rule.key);
    return keys;
}

Result<LiveConfig> read_live_config(std::span<const ConfigSetting> settings,
                                    std::span<const std::string> empty_tables) {
    LiveConfig config;
    add_bare_tenants(config.tenants, empty_tables);
    for (const ConfigSetting& setting : settings) {
        if (auto applied = apply(config, setting); !applied) {
            const bool policy = setting.rule < kRules.size() && kRules[setting.rule].key.key == "scheduler.policy";
            std::string names;
            for (const std::string_view name : policy_names())
                names += (names.empty() ? ": " : ", ") + std::string(name);
            return fail(ErrorCode::invalid_argument, applied.error().message + (policy ? names : ""));
        }
    }
    if ((config.gpus > 0) + !config.nodes.empty() + !config.cells.empty() > 1) {
        return fail(ErrorCode::invalid_argument,
                    "scheduler.gpus, scheduler.node.NAME and scheduler.cells exclude each other: name the GPUs once");
    }
    if (config.agent_has_nodes && (config.gpus > 0 || !config.nodes.empty() || !config.cells.empty())) {
        return fail(ErrorCode::invalid_argument,
                    "scheduler.nodes = \"agent\" leaves it to the agent to name the GPUs: remove scheduler.gpus, "
                    "scheduler.node.NAME and scheduler.cells");
    }
    if (config.agent_has_nodes && !config.has_agent) {
        return fail(ErrorCode::invalid_argument, "scheduler.nodes = \"agent\" needs scheduler.engine = \"agent\"");
    }
    for (const auto& [name, node] : config.nodes) {
        if (node.gpus == 0)
            return fail(ErrorCode::invalid_argument,
                        "scheduler.node." + name + ".gpus is missing: expected " + std::string(kGpus));
    }
    if (!config.runs_jobs() && !settings.empty()) {
        return fail(ErrorCode::invalid_argument,
                    settings.front().shown + ": needs scheduler.gpus, without which no jobs are run");
    }
    if (auto tenants = tenants_of(config); !tenants) return std::unexpected(tenants.error());
    return config;
}

GpuCluster gpu_cluster_of(const LiveConfig& config, const std::string& this_node) {
    if (config.agent_has_nodes) return {.gpu_types = {config.gpu_type}, .nodes = {}, .is_open = true};
    std::map<std::string, NodeConfig> nodes = config.nodes;
    if (nodes.empty()) nodes[this_node].gpus = config.gpus;
    GpuCluster cluster;
    for (const auto& [name, node] : nodes) {
        const std::string& type = node.gpu_type.empty() ? config.gpu_type : node.gpu_type;
        auto at = std::ranges::find(cluster.gpu_types, type);
        if (at == cluster.gpu_types.end()) at = cluster.gpu_types.insert(at, type);
        cluster.nodes.push_back(
            {.name = name, .gpu_type = static_cast<std::uint32_t>(at - cluster.gpu_types.begin()), .gpus = node.gpus});
    }
    return cluster;
}

std::vector<SubmitRule> submit_rules_of(const LiveConfig& config) {
    std::vector<SubmitRule> rules;
    for (const auto& [name, tenant] : config.tenants) {
        SubmitRule rule{.is_open = !tenant.submitters,
                        .uids = {},
                        .names = {},
                        .priority_max = tenant.priority_max,
                        .weight_max = tenant.weight_max};
        for (const std::string& submitter : tenant.submitters.value_or(std::vector<std::string>())) {
            if (const auto uid = user_id(submitter)) rule.uids.insert(*uid);
            rule.names.insert(submitter);
        }
        rules.push_back(std::move(rule));
    }
    return rules;
}

Result<std::vector<Tenant>> tenants_of(const LiveConfig& config) {
    return tenants_of(config.tenants.empty() ? TenantConfigs{{"default", {}}} : config.tenants);
}

}  // namespace larder::scheduler
