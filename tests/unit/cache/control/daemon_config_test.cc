#include "cache/control/daemon_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "cache/control/config_keys.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

DaemonConfig parsed(std::string_view toml, const std::vector<ConfigOverride>& overrides = {}) {
    auto config = parse_config(toml, "larderd.toml", overrides);
    EXPECT_TRUE(config) << config.error().message;
    return config ? *config : DaemonConfig{};
}

std::string message_of(std::string_view toml, const std::vector<ConfigOverride>& overrides = {}) {
    const auto config = parse_config(toml, "larderd.toml", overrides);
    EXPECT_FALSE(config) << toml;
    if (config) return {};
    EXPECT_EQ(config.error().code, ErrorCode::invalid_argument);
    return config.error().message;
}

TEST(Config, EmptyFileGivesDefaults) {
    const DaemonConfig config = parsed("");
    EXPECT_EQ(config.state_directory, default_state_directory());
    EXPECT_EQ(config.socket_path, default_state_directory() + "/larderd.sock");
    EXPECT_EQ(config.admin_socket_path, default_state_directory() + "/admin.sock");
    EXPECT_EQ(config.io, IoMode::automatic);
    EXPECT_GE(config.data_plane_threads, 1u);
    EXPECT_EQ(config.log_level, "info");
    EXPECT_TRUE(config.jobs.empty());
    EXPECT_TRUE(config.datasets.empty());
}

TEST(Config, ReadsEveryKey) {
    const DaemonConfig config = parsed(R"(
        state_directory = "/s"
        socket = "/r/l.sock"
        socket_mode = "0660"
        admin_socket = "/r/a.sock"
        admin_socket_mode = "0600"
        metrics_listen = "[::1]:9464"
        io = "threads"
        data_plane_threads = 3
        memory = "2 GiB"
        disk = "1 TB"
        default_remote_rate = "1 Gbit"
        default_remote_burst = "1 MiB"
        [log]
        level = "debug"
        file = "/l"
        [session]
        slot_memory_max = "64 MiB"
        count_max = 7
        [job.a]
        remote_rate = "200 MB/s"
        [job."b.c"]
        remote_burst = "8 MiB"
        [dataset.images]
        url = "file:///data"
        format = "webdataset"
        block = "8 MiB"
        owner = "ann"
        group = "ml"
        mode = "0644"
        quota_memory = "1 GiB"
        quota_disk = 0
    )");
    EXPECT_EQ(config.state_directory, "/s");
    EXPECT_EQ(config.socket_path, "/r/l.sock");
    EXPECT_EQ(config.socket_mode, 0660u);
    EXPECT_EQ(config.admin_socket_path, "/r/a.sock");
    EXPECT_EQ(config.admin_socket_mode, 0600u);
    EXPECT_EQ(config.metrics_listen, "[::1]:9464");
    EXPECT_EQ(config.io, IoMode::threads);
    EXPECT_EQ(config.data_plane_threads, 3u);
    EXPECT_EQ(config.memory_bytes, std::uint64_t{2} << 30);
    EXPECT_EQ(config.disk_bytes, 1'000'000'000'000u);
    EXPECT_EQ(config.default_job.remote_bytes_per_second, 125e6);
    EXPECT_EQ(config.default_job.remote_burst_bytes, 1u << 20);
    EXPECT_EQ(config.log_level, "debug");
    EXPECT_EQ(config.log_file, "/l");
    EXPECT_EQ(config.session_slot_bytes_max, 64u << 20);
    EXPECT_EQ(config.sessions_max, 7u);
    ASSERT_EQ(config.jobs.size(), 2u);
    EXPECT_EQ(config.jobs.at("a").remote_bytes_per_second, 200e6);
    EXPECT_EQ(config.jobs.at("a").remote_burst_bytes, 1u << 20) << "a value that the job omits comes from the default";
    EXPECT_EQ(config.jobs.at("b.c").remote_bytes_per_second, 125e6);
    EXPECT_EQ(config.jobs.at("b.c").remote_burst_bytes, 8u << 20);
    const DatasetRequest& images = config.datasets.at("images");
    EXPECT_EQ(images.definition.url, "file:///data");
    EXPECT_EQ(images.definition.format, protocol::Format::webdataset);
    EXPECT_EQ(images.definition.block.target, protocol::BlockTarget::bytes);
    EXPECT_EQ(images.definition.block.bytes, 8u << 20);
    EXPECT_EQ(images.owner, "ann");
    EXPECT_EQ(images.group, "ml");
    EXPECT_EQ(images.mode, 0644u);
    EXPECT_EQ(images.quota_memory_bytes, std::uint64_t{1} << 30);
    EXPECT_EQ(images.quota_disk_bytes, 0u);
}

TEST(Config, FlagOverridesFile) {
    const DaemonConfig config =
        parsed("[log]\nlevel = \"info\"\n[job.a]\nremote_rate = \"1 MB/s\"\n", {{"log.level", "error"},
                                                                                {"data_plane_threads", "2"},
                                                                                {"memory", "3 GiB"},
                                                                                {"default_remote_burst", "2 MiB"},
                                                                                {"job.a.remote_rate", "0"},
                                                                                {"dataset.x.url", "file:///x"}});
    EXPECT_EQ(config.log_level, "error");
    EXPECT_EQ(config.data_plane_threads, 2u);
    EXPECT_EQ(config.memory_bytes, std::uint64_t{3} << 30);
    EXPECT_EQ(config.jobs.at("a").remote_bytes_per_second, 0);
    EXPECT_EQ(config.jobs.at("a").remote_burst_bytes, 2u << 20);
    EXPECT_EQ(config.datasets.at("x").definition.url, "file:///x");
}

TEST(Config, UnknownKeyErrorNamesLineAndNearestKey) {
    EXPECT_EQ(message_of("io = \"auto\"\n[log]\nlevle = \"info\"\n"),
              "larderd.toml:3: unknown key \"log.levle\": did you mean \"log.level\"?");
    EXPECT_EQ(message_of("\nmemroy = \"1 GiB\""), "larderd.toml:2: unknown key \"memroy\": did you mean \"memory\"?");
    EXPECT_EQ(message_of("[dataset.a]\nurl = \"file:///x\"\ncolour = \"red\"\n"),
              "larderd.toml:3: unknown key \"dataset.a.colour\": allowed are url, format, block, endpoint, region, "
              "profile, addressing, unsigned, requester_pays, follow_symlinks, compression, checksum, "
              "tokens_per_sample, columns, owner, group, mode, "
              "quota_memory, quota_disk");
    EXPECT_EQ(message_of("[job.a]\nremote_rat = \"1 MB/s\""),
              "larderd.toml:2: unknown key \"job.a.remote_rat\": did you mean \"remote_rate\"?");
    EXPECT_THAT(message_of("[zebra]\nx = 1"), StartsWith("larderd.toml:1: unknown key \"zebra\": allowed are "));
    EXPECT_THAT(message_of("[dataset]\nurl = \"file:///x\""),
                StartsWith("larderd.toml:2: unknown key \"dataset.url\""));
    EXPECT_THAT(message_of("log = \"info\""), StartsWith("larderd.toml:1: unknown key \"log\""));
    EXPECT_THAT(message_of("[[dataset]]\nurl = \"file:///x\""), StartsWith("larderd.toml:1: unknown key \"dataset\""));
    EXPECT_EQ(message_of("", {{"log.levl", "info"}}),
              "flag --log.levl: unknown key \"log.levl\": did you mean \"log.level\"?");
}

TEST(Config, WrongTypeErrorSaysWhatIsExpected) {
    EXPECT_EQ(message_of("io = 3"), "larderd.toml:1: io = 3: expected \"auto\", \"ring\" or \"threads\"");
    EXPECT_EQ(message_of("data_plane_threads = \"2\""),
              "larderd.toml:1: data_plane_threads = \"2\": expected a whole number, 0 to 64");
    EXPECT_EQ(message_of("data_plane_threads = 1.5"),
              "larderd.toml:1: data_plane_threads = 1.5: expected a whole number, 0 to 64");
    EXPECT_THAT(message_of("memory = 1073741824"), HasSubstr("memory = 1073741824: expected a size such as \"8 GiB\""));
    EXPECT_THAT(message_of("memory = true"), HasSubstr("memory = true: expected a size"));
    EXPECT_THAT(message_of("memory = [\"1 GiB\"]"), HasSubstr("expected a size"));
    EXPECT_THAT(message_of("socket_mode = 640"), HasSubstr("socket_mode = 640: expected an octal mode"));
    EXPECT_THAT(message_of("socket = {a = 1}"), HasSubstr("expected a path"));
}

TEST(Config, WrongValueErrorNamesLineAndKey) {
    EXPECT_EQ(message_of("[log]\n\nlevel = \"loud\""),
              "larderd.toml:3: log.level = \"loud\": expected \"trace\", \"debug\", \"info\", \"warn\" or \"error\"");
    for (const char* wrong :
         {"memory = \"8 gb\"", "memory = \"8\"", "disk = \"1 Gbit\"", "default_remote_rate = \"5 MX\"",
          "session.slot_memory_max = \"0\"", "default_remote_burst = \"-1 MiB\"", "data_plane_threads = -1",
          "data_plane_threads = 65", "socket_mode = \"0888\"", "socket_mode = \"1777\"", "socket = \"\"",
          "metrics_listen = \"9464\"", "session.count_max = 0", "dataset.a.block = \"file\"",
          "dataset.a.format = \"tar\"", "dataset.a.tokens_per_sample = 0", "dataset.a.url = \"data\"",
          "dataset.a.mode = \"rw\"", "job.a.remote_rate = \"fast\""}) {
        const std::string message = message_of(wrong);
        EXPECT_THAT(message, StartsWith("larderd.toml:1: ")) << wrong;
        EXPECT_THAT(message, HasSubstr(wrong));
        EXPECT_THAT(message, HasSubstr(": expected "));
    }
    EXPECT_EQ(message_of("", {{"session.count_max", "many"}}),
              "--session.count-max many: expected a whole number, 1 to 65536");
}

TEST(Config, BrokenTomlErrorNamesLine) {
    EXPECT_THAT(message_of("io = \"auto\"\nmemory = \n"), StartsWith("larderd.toml:2: "));
    EXPECT_THAT(message_of("io = \"auto\"\nio = \"ring\"\n"), StartsWith("larderd.toml:2: "));
}

TEST(Config, SizesAndRatesUseCommandLineUnits) {
    const auto config = parse_config("memory = \"10G\"\ndisk = \"2 TB\"\ndefault_remote_rate = \"80 kB/s\"\n", "t");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->memory_bytes, 10'000'000'000u);
    EXPECT_EQ(config->disk_bytes, 2'000'000'000'000u);
    EXPECT_EQ(config->default_job.remote_bytes_per_second, 80e3);
}

TEST(Config, MemoryBeyondTheMachineIsAnError) {
    const auto config = parse_config("memory = \"2000 GiB\"", "t").value();
    constexpr std::uint64_t gib = std::uint64_t{1} << 30;
    const auto machine = check_memory(config, {.bytes = 24 * gib});
    ASSERT_FALSE(machine);
    EXPECT_EQ(machine.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(machine.error().message, StartsWith("memory = 1.95 TiB is more than there is: this machine has 24.00 "
                                                    "GiB"));
    const auto group = check_memory(config, {.bytes = 8 * gib, .limited_by_cgroup = true});
    EXPECT_THAT(group.error().message, HasSubstr("the control group of this process may have 8.00 GiB"));
    EXPECT_TRUE(check_memory(config, {.bytes = 2000 * gib}));
}

TEST(Config, UnsafeDatasetAndJobNamesAreRejected) {
    for (const char* wrong : {"[dataset.\"a/b\"]\nurl = \"file:///x\"", "[dataset.\"..\"]\nurl = \"file:///x\"",
                              "[dataset.\"\"]\nurl = \"file:///x\"", "[job.\"a b\"]\nremote_rate = 0",
                              "[dataset.-a]\nurl = \"file:///x\""}) {
        EXPECT_THAT(message_of(wrong), HasSubstr("is not a name")) << wrong;
    }
}

TEST(Config, ConflictingSettingsAreErrors) {
    EXPECT_THAT(message_of("[dataset.a]\nformat = \"raw\""), HasSubstr("[dataset.a] has no url"));
    EXPECT_THAT(message_of("[dataset.a]"), HasSubstr("[dataset.a] has no url"));
    EXPECT_EQ(
        message_of("memory = \"1 GiB\"\n[dataset.a]\nurl = \"file:///a\"\nquota_memory = \"768 MiB\"\n"
                   "[dataset.b]\nurl = \"file:///b\"\nquota_memory = \"512 MiB\"\n"),
        "larderd.toml: dataset.b.quota_memory = 512.00 MiB does not fit: 256.00 MiB are left of memory = 1.00 GiB");
    EXPECT_THAT(message_of("disk = \"1 GiB\"\n[dataset.a]\nurl = \"file:///a\"\nquota_disk = \"2 GiB\"\n"),
                HasSubstr("dataset.a.quota_disk = 2.00 GiB does not fit"));
    const std::string deep(120, 'd');
    EXPECT_THAT(message_of("state_directory = \"/" + deep + "\""), HasSubstr("set socket to a shorter path"));
}

TEST(Config, MissingFileIsAnError) {
    const test::TempDirectory directory;
    const auto config = load_config(directory / "none.toml");
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().code, ErrorCode::not_found);
    EXPECT_THAT(config.error().message, HasSubstr("none.toml"));
    EXPECT_TRUE(load_config(""));
}

TEST(Config, DataPlaneThreadsScaleWithCores) {
    EXPECT_EQ(data_plane_threads_of(0), 1u);
    EXPECT_EQ(data_plane_threads_of(2), 1u);
    EXPECT_EQ(data_plane_threads_of(8), 2u);
    EXPECT_EQ(data_plane_threads_of(96), 8u);
}

TEST(ExampleConfig, ParsesAndShowsEveryKey) {
    const std::string path = LARDER_SOURCE_DIRECTORY "/tools/larderd.example.toml";
    const auto config = load_config(path);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->datasets.size(), 1u);
    const std::string content = *read_file(path);
    for (const auto& rule : config_rules()) {
        const std::string_view key = rule.key.key;
        const std::string_view last = key.substr(key.rfind('.') + 1);
        EXPECT_THAT(content, ::testing::ContainsRegex("\n#?" + std::string(last) + " = ")) << key << " is not shown";
    }
    // Values that the file shows as defaults are the defaults.
    const DaemonConfig defaults = parsed("");
    EXPECT_EQ(config->memory_bytes, defaults.memory_bytes);
    EXPECT_EQ(config->disk_bytes, defaults.disk_bytes);
    EXPECT_EQ(config->socket_mode, defaults.socket_mode);
    EXPECT_EQ(config->admin_socket_mode, defaults.admin_socket_mode);
    EXPECT_EQ(config->data_plane_threads, defaults.data_plane_threads);
    EXPECT_EQ(config->session_slot_bytes_max, defaults.session_slot_bytes_max);
    EXPECT_EQ(config->sessions_max, defaults.sessions_max);
    EXPECT_EQ(config->default_job.remote_bytes_per_second, defaults.default_job.remote_bytes_per_second);
    EXPECT_EQ(config->default_job.remote_burst_bytes, defaults.default_job.remote_burst_bytes);
}

}  // namespace
}  // namespace larder::cache
