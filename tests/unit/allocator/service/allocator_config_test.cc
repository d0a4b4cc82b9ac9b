#include "allocator/service/allocator_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "scheduler/live/live_config.h"

namespace larder::allocator {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kRequiredKeys = "socket = \"/s\"\nremote_bandwidth = \"1 Gbit\"\n";

AllocatorConfig parsed(const std::string& toml, const std::vector<ConfigOverride>& overrides = {}) {
    const auto config = parse_config(std::string(kRequiredKeys) + toml, "a.toml", overrides);
    EXPECT_TRUE(config) << config.error().message;
    return config.value_or(AllocatorConfig());
}

std::string message_of(std::string_view toml, const std::vector<ConfigOverride>& overrides = {}) {
    const auto config = parse_config(toml, "a.toml", overrides);
    EXPECT_FALSE(config) << toml;
    if (config) return {};
    EXPECT_EQ(config.error().code, ErrorCode::invalid_argument);
    return config.error().message;
}

std::string config_refusal(const std::string& toml, const std::vector<ConfigOverride>& overrides = {}) {
    return message_of(std::string(kRequiredKeys) + toml, overrides);
}

TEST(AllocatorConfig, ReadsEveryKey) {
    const AllocatorConfig config = parsed(R"(
        state = "/state"
        socket_mode = "0600"
        listen = "0.0.0.0:7600"
        plain_tcp = false
        objective = "equal-shares"
        hysteresis = 0.5
        floor = "2 MB/s"
        lease = "30 s"
        [tls]
        certificate = "/c"
        key = "/k"
        client_ca = "/a"
        client_certificate_required = true
        [access]
        tokens = "/t"
        local_role = "viewer"
        [user.alice]
        role = "operator"
        [certificate."node-7.cluster"]
        role = "node"
        peer_endpoint = "https://node-7.cluster:7474"
        peer_group = "rack"
        [limits]
        header = "8 KiB"
        body = "1 MiB"
        connections = 9
        connections_per_peer = 8
        jobs_per_owner = 70
        requests_per_second_per_peer = 7
        request_burst_per_peer = 6
        request_timeout = "5 s"
        idle_timeout = "4 s"
        [log]
        level = "warn"
        file = "/l"
    )");
    EXPECT_EQ(config.state_directory, "/state");
    EXPECT_EQ(config.socket, "/s");
    EXPECT_EQ(config.socket_mode, 0600u);
    EXPECT_EQ(config.listen, "0.0.0.0:7600");
    EXPECT_EQ(config.cluster.remote_bytes_per_second, 125e6);
    EXPECT_EQ(config.cluster.objective.kind, ObjectiveKind::equal_shares);
    EXPECT_EQ(config.cluster.objective.hysteresis, 0.5);
    EXPECT_EQ(config.cluster.floor_bytes_per_second, 2e6);
    EXPECT_EQ(config.cluster.lease_ns, 30'000'000'000);
    EXPECT_EQ(config.tls.certificate_file, "/c");
    EXPECT_EQ(config.tls.key_file, "/k");
    EXPECT_EQ(config.tls.client_ca_file, "/a");
    EXPECT_TRUE(config.tls.client_certificate_required);
    EXPECT_EQ(config.token_file, "/t");
    EXPECT_EQ(config.local_role, Role::viewer);
    EXPECT_EQ(config.users, (std::map<std::string, Role>{{"alice", Role::operator_}}));
    const Grant& node = config.certificates.at("node-7.cluster");
    EXPECT_EQ(node.role, Role::node);
    EXPECT_EQ(node.node.peer_endpoint, "https://node-7.cluster:7474");
    EXPECT_EQ(node.node.peer_group, "rack");
    EXPECT_EQ(config.limits.header_bytes, 8u << 10);
    EXPECT_EQ(config.limits.body_bytes, 1u << 20);
    EXPECT_EQ(config.limits.connections, 9u);
    EXPECT_EQ(config.limits.connections_per_peer, 8u);
    EXPECT_EQ(config.cluster.jobs_per_owner_max, 70u);
    EXPECT_EQ(config.limits.requests_per_second_per_peer, 7u);
    EXPECT_EQ(config.limits.request_burst_per_peer, 6u);
    EXPECT_EQ(config.limits.request_timeout_ns, 5'000'000'000);
    EXPECT_EQ(config.limits.idle_timeout_ns, 4'000'000'000);
    EXPECT_EQ(config.log_level, "warn");
    EXPECT_EQ(config.log_file, "/l");
}

TEST(AllocatorConfig, FlagOverridesFile) {
    const AllocatorConfig config = parsed("objective = \"equal-shares\"", {{"objective", "max-min"},
                                                                           {"remote_bandwidth", "2 Gbit"},
                                                                           {"hysteresis", "0.25"},
                                                                           {"plain_tcp", "true"},
                                                                           {"limits.connections", "5"}});
    EXPECT_EQ(config.cluster.objective.kind, ObjectiveKind::max_min);
    EXPECT_EQ(config.cluster.remote_bytes_per_second, 250e6);
    EXPECT_EQ(config.cluster.objective.hysteresis, 0.25);
    EXPECT_TRUE(config.plain_tcp);
    EXPECT_EQ(config.limits.connections, 5u);
}

TEST(AllocatorConfig, ErrorNamesKeyValueAndWhatIsAllowed) {
    EXPECT_EQ(config_refusal("lense = \"1 s\""), "a.toml:3: unknown key \"lense\": did you mean \"lease\"?");
    EXPECT_EQ(config_refusal("state_directory = \"/x\""),
              "a.toml:3: unknown key \"state_directory\": did you mean \"state\"?");
    EXPECT_EQ(config_refusal("lease = \"10 ms\""),
              "a.toml:3: lease = \"10 ms\": expected a time from \"1 s\" to \"1 h\", in text");
    EXPECT_EQ(config_refusal("objective = \"luck\""),
              "a.toml:3: objective = \"luck\": expected \"efficiency\", \"max-min\", \"throughput\", \"utilisation\", "
              "\"equal-shares\" or "
              "\"pinned\"");
    for (const auto& [kind, text] : kObjectiveTexts) {
        EXPECT_THAT(config_refusal("objective = \"luck\""), HasSubstr('"' + std::string(text) + '"'));
    }
    EXPECT_THAT(config_refusal("hysteresis = 1.5"), HasSubstr("hysteresis = 1.5: expected a number from 0 to 1"));
    EXPECT_THAT(config_refusal("hysteresis = \"0.5\""), HasSubstr("expected a number"));
    EXPECT_THAT(config_refusal("plain_tcp = \"yes\""), HasSubstr("plain_tcp = \"yes\": expected true or false"));
    EXPECT_THAT(config_refusal("listen = \"7600\""), HasSubstr("expected IP:PORT"));
    EXPECT_THAT(config_refusal("[certificate.a]\nrole = \"admin\""),
                HasSubstr("role = \"admin\": expected \"viewer\""));
    EXPECT_THAT(config_refusal("[certificate.a]\npeer_endpoint = \"a:1\""),
                HasSubstr("peer_endpoint = \"a:1\": expected http://"));
    EXPECT_THAT(config_refusal("[limits]\nbody = \"1 KiB\""),
                HasSubstr("expected a size from \"64 KiB\" to \"256 MiB\""));
    EXPECT_THAT(config_refusal("", {{"limits.connections", "0"}}),
                HasSubstr("--limits.connections 0: expected a whole number"));
    EXPECT_THAT(message_of("socket = \"/s\"\nremote_bandwidth = 0"), HasSubstr("expected a rate above 0"));
    EXPECT_THAT(message_of("socket = \"/s\""), HasSubstr("a.toml: remote_bandwidth is missing"));
    EXPECT_THAT(message_of(""),
                testing::AllOf(HasSubstr("remote_bandwidth is missing"), HasSubstr("socket are missing")));
    EXPECT_THAT(message_of("remote_bandwidth = \"1 Gbit\""), HasSubstr("state and socket are missing"));
    EXPECT_THAT(config_refusal("floor = \"10 Gbit\""), HasSubstr("is above remote_bandwidth"));
    EXPECT_EQ(parse_config("state = \"/s\"\nremote_bandwidth = \"1 Gbit\"", "a.toml")->socket, "/s/allocator.sock");
}

TEST(AllocatorConfig, PlainTcpToOtherMachinesNeedsExplicitKey) {
    const std::string tokens = "[access]\ntokens = \"/t\"\n";
    EXPECT_THAT(config_refusal("listen = \"0.0.0.0:7600\"\n" + tokens),
                HasSubstr("without TLS would show every token"));
    EXPECT_THAT(config_refusal("listen = \"10.0.0.1:7600\"\n" + tokens), HasSubstr("plain_tcp = true"));
    EXPECT_EQ(parsed("listen = \"127.0.0.1:7600\"\n" + tokens).listen, "127.0.0.1:7600");
    EXPECT_EQ(parsed("listen = \"[::1]:7600\"\n" + tokens).listen, "[::1]:7600");
    EXPECT_TRUE(parsed("listen = \"0.0.0.0:7600\"\nplain_tcp = true\n" + tokens).plain_tcp);
}

TEST(AllocatorConfig, MissingCompanionKeyIsNamed) {
    EXPECT_THAT(config_refusal("listen = \"127.0.0.1:0\""), HasSubstr("set access.tokens or certificate.NAME.role"));
    EXPECT_THAT(config_refusal("listen = \"127.0.0.1:0\"\n[tls]\ncertificate = \"/c\""),
                HasSubstr("tls.key is missing"));
    EXPECT_THAT(config_refusal("[tls]\nkey = \"/k\""), HasSubstr("tls.certificate is missing"));
    EXPECT_THAT(config_refusal("[tls]\ncertificate = \"/c\"\nkey = \"/k\""), HasSubstr("listen is not"));
    EXPECT_THAT(config_refusal("[tls]\nclient_ca = \"/a\""), HasSubstr("tls.client_ca needs tls.certificate"));
    EXPECT_THAT(config_refusal("[certificate.a]\nrole = \"node\""),
                HasSubstr("certificate.NAME.role needs tls.client_ca"));
}

TEST(AllocatorConfig, ExampleIsValidAndShowsEveryKey) {
    const std::string path = LARDER_SOURCE_DIRECTORY "/tools/larder-allocator.example.toml";
    // The example also has the scheduler's keys.
    const auto jobs_keys = scheduler::live_config_keys();
    OthersConfig others{.keys = jobs_keys, .settings = {}, .empty_tables = {}};
    const auto config = load_config(path, {}, &others);
    ASSERT_TRUE(config) << config.error().message;
    const auto jobs = scheduler::read_live_config(others.settings, others.empty_tables);
    ASSERT_TRUE(jobs) << jobs.error().message;
    const std::string content = *read_file(path);
    std::vector<ConfigKey> keys = config_keys();
    keys.insert(keys.end(), jobs_keys.begin(), jobs_keys.end());
    for (const ConfigKey& key : keys) {
        const std::string_view last = key.key.substr(key.key.rfind('.') + 1);
        EXPECT_THAT(content, ::testing::ContainsRegex("\n#?" + std::string(last) + " = "))
            << key.key << " is not shown";
    }
    // The values that the file calls defaults are the defaults.
    const AllocatorConfig defaults = parsed("");
    EXPECT_EQ(config->socket_mode, defaults.socket_mode);
    EXPECT_EQ(config->local_role, defaults.local_role);
    EXPECT_EQ(config->plain_tcp, defaults.plain_tcp);
    EXPECT_EQ(config->cluster.objective.kind, defaults.cluster.objective.kind);
    EXPECT_EQ(config->cluster.objective.hysteresis, defaults.cluster.objective.hysteresis);
    EXPECT_EQ(config->cluster.lease_ns, defaults.cluster.lease_ns);
    EXPECT_EQ(config->cluster.floor_bytes_per_second, defaults.cluster.floor_bytes_per_second);
    EXPECT_EQ(config->log_level, defaults.log_level);
    EXPECT_EQ(config->limits.header_bytes, defaults.limits.header_bytes);
    EXPECT_EQ(config->limits.body_bytes, defaults.limits.body_bytes);
    EXPECT_EQ(config->limits.connections, defaults.limits.connections);
    EXPECT_EQ(config->limits.connections_per_peer, defaults.limits.connections_per_peer);
    EXPECT_EQ(config->cluster.jobs_per_owner_max, defaults.cluster.jobs_per_owner_max);
    EXPECT_EQ(config->limits.requests_per_second_per_peer, defaults.limits.requests_per_second_per_peer);
    EXPECT_EQ(config->limits.request_burst_per_peer, defaults.limits.request_burst_per_peer);
    EXPECT_EQ(config->limits.request_timeout_ns, defaults.limits.request_timeout_ns);
    EXPECT_EQ(config->limits.idle_timeout_ns, defaults.limits.idle_timeout_ns);
    const scheduler::LiveConfig jobs_defaults;
    EXPECT_EQ(jobs->policy, jobs_defaults.policy);
    EXPECT_EQ(jobs->gpu_type, jobs_defaults.gpu_type);
    EXPECT_EQ(jobs->history, jobs_defaults.history);
    EXPECT_EQ(jobs->policy_options.round_s, jobs_defaults.policy_options.round_s);
    EXPECT_EQ(jobs->policy_options.lease_s, jobs_defaults.policy_options.lease_s);
    EXPECT_EQ(jobs->policy_options.interval_s, jobs_defaults.policy_options.interval_s);
    EXPECT_EQ(jobs->policy_options.starve_s, jobs_defaults.policy_options.starve_s);
    EXPECT_EQ(jobs->policy_options.queue_gpu_s, jobs_defaults.policy_options.queue_gpu_s);
    EXPECT_EQ(jobs->policy_options.promote_after, jobs_defaults.policy_options.promote_after);
}

}  // namespace
}  // namespace larder::allocator
