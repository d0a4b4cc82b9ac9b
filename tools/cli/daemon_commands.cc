#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/machine_memory.h"
#include "base/units.h"
#include "tools/cli/api.h"
#include "tools/cli/context.h"
#include "tools/cli/daemon_flags.h"
#include "tools/cli/daemon_process.h"
#include "tools/cli/embedded_allocator.h"
#include "tools/cli/options.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

constexpr std::uint64_t kMemoryDivisor = 10;  // of the machine's memory
constexpr std::uint64_t kDiskDivisor = 2;     // of what is free, and of what an earlier run has cached

struct UpOptions {
    std::string state;
    std::optional<double> remote_bytes_per_second;
    DaemonFlags flags;
};

// Whole MiB, so that what is printed is what is used.
std::string whole_mib(std::uint64_t bytes) {
    return std::to_string(bytes >> 20) + " MiB";
}

Result<std::uint64_t> free_disk_bytes(const std::string& directory) {
    struct statvfs status{};
    if (::statvfs(directory.c_str(), &status) != 0) return fail_errno(errno, "statvfs " + directory);
    return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

bool gives(const std::vector<cache::ConfigOverride>& overrides, std::string_view key) {
    for (const auto& override : overrides) {
        if (override.key == key) return true;
    }
    return false;
}

std::uint64_t cached_disk_bytes(const std::string& directory) {
    namespace fs = std::filesystem;
    std::uint64_t bytes = 0;
    std::error_code error;
    for (fs::recursive_directory_iterator entry(directory + "/segments", error), end; !error && entry != end;
         entry.increment(error)) {
        struct stat status{};
        if (::stat(entry->path().c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
            bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
        }
    }
    return bytes;
}

// What the user did not say is chosen from the machine.
Result<cache::Config> choose(const UpOptions& options, std::vector<cache::ConfigOverride> overrides) {
    if (!options.state.empty()) overrides.push_back({"state_directory", options.state});
    auto config = cache::load_config("", overrides);
    if (!config) return config;
    const std::string& directory = config->state_directory;
    std::error_code failure;
    std::filesystem::create_directories(directory, failure);
    if (failure) return fail_errno(failure.value(), "create " + directory);
    if (!gives(overrides, "memory"))
        overrides.push_back({"memory", whole_mib(machine_memory().bytes / kMemoryDivisor)});
    if (!gives(overrides, "disk")) {
        const auto free_bytes = free_disk_bytes(directory);
        if (!free_bytes) return std::unexpected(free_bytes.error());
        overrides.push_back({"disk", whole_mib((*free_bytes + cached_disk_bytes(directory)) / kDiskDivisor)});
    }
    if (!gives(overrides, "admin_socket_mode")) overrides.push_back({"admin_socket_mode", "0600"});
    if (!gives(overrides, "allocator.endpoint")) {
        overrides.push_back({"allocator.endpoint", directory + "/allocator.sock"});
        if (!gives(overrides, "allocator.rates"))
            overrides.push_back(
                {"allocator.rates", options.remote_bytes_per_second.value_or(0) > 0 ? "true" : "false"});
    }
    return cache::load_config("", overrides);
}

void print_start(const Context& context, const cache::Config& config) {
    if (context.json) {
        print_json(json::object{{"pid", ::getpid()},
                                {"state_directory", config.state_directory},
                                {"socket", config.socket_path},
                                {"admin_socket", config.admin_socket_path},
                                {"allocator", config.allocator.endpoint},
                                {"memory_bytes", config.memory_bytes},
                                {"disk_bytes", config.disk_bytes}});
    } else {
        std::fputs(name_value_text({{"larder daemon is up", "pid " + std::to_string(::getpid()) + "; Ctrl-C ends it"},
                                    {"  state", config.state_directory},
                                    {"  memory for datasets", format_bytes(config.memory_bytes)},
                                    {"  disk for datasets", format_bytes(config.disk_bytes)},
                                    {"  jobs connect to", config.socket_path},
                                    {"  quotas are set by", config.allocator.endpoint},
                                    {"  next", "larder dataset add NAME DIRECTORY"}})
                       .c_str(),
                   stdout);
    }
    std::fflush(stdout);
}

int up(const Context& context, const UpOptions& options, const CLI::App& app) {
    const auto overrides = options.flags.overrides(app);
    if (!overrides) return report(context, overrides.error());
    const auto config = choose(options, *overrides);
    if (!config) return report(context, config.error());
    std::unique_ptr<EmbeddedAllocator> allocator;
    const auto started = [&]() -> Result<void> {
        if (!gives(*overrides, "allocator.endpoint")) {
            auto made =
                EmbeddedAllocator::start({.state_directory = config->state_directory,
                                          .socket = config->allocator.endpoint,
                                          .remote_bytes_per_second = options.remote_bytes_per_second.value_or(0)});
            if (!made) return std::unexpected(made.error());
            allocator = std::move(*made);
        }
        print_start(context, *config);
        return {};
    };
    const auto ran =
        run_daemon({.config = *config, .reload = {}, .started = started, .ended = [&] { allocator.reset(); }});
    return ran ? kDone : report(context, ran.error());
}

std::string in_brackets(const std::string& text) {
    return text.empty() ? "" : " (" + text + ")";
}

// A line for each node whose cache is read.
void print_peers(const json::object& peers) {
    const std::string endpoint = text_at(peers, "endpoint");
    std::printf("lends cached blocks   %s\n", endpoint.empty() ? "no" : ("at " + endpoint).c_str());
    cli::Table table({"reads from", ">blocks there", ">room there", "problem"});
    for (const json::value& other : array_at(peers, "others")) {
        const json::object& peer = other.as_object();
        table.add({text_at(peer, "endpoint"), format_count(count_at(peer, "held_blocks")),
                   format_bytes(count_at(peer, "room_bytes")), text_at(peer, "problem")});
    }
    std::fputs(table.text().c_str(), stdout);
}

int status(const Context& context) {
    const auto answer = call(context, "GET", "/v1/status");
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    const json::object& fields = as_object(*answer);
    std::fputs(name_value_text({{"version", text_at(fields, "version")},
                                {"pid", text_at(fields, "pid")},
                                {"up for", format_seconds(number_at(fields, "uptime_s"))},
                                {"io", text_at(fields, "io") + in_brackets(text_at(fields, "io_reason"))},
                                {"data-plane threads", text_at(fields, "data_plane_threads")},
                                {"memory for datasets", format_bytes(count_at(fields, "memory_bytes"))},
                                {"disk for datasets", format_bytes(count_at(fields, "disk_bytes"))},
                                {"datasets", text_at(fields, "datasets")},
                                {"sessions", text_at(fields, "sessions") + ", slots of " +
                                                 format_bytes(count_at(fields, "slot_bytes"))}})
                   .c_str(),
               stdout);
    if (const json::value* peers = fields.if_contains("peers"); peers != nullptr && peers->is_object()) {
        print_peers(peers->get_object());
    }
    const std::string problem = text_at(fields, "index_problem");
    if (!problem.empty()) std::printf("the index: %s\n", problem.c_str());
    return kDone;
}

int version(const Context& context) {
    if (context.json) {
        print_json(json::object{{"version", LARDER_VERSION}});
    } else {
        std::puts("larder " LARDER_VERSION);
    }
    return kDone;
}

}  // namespace

void add_daemon_commands(CLI::App& app, Context& context) {
    auto options = std::make_shared<UpOptions>();
    CLI::App* up_app = app.add_subcommand("up", "Run a daemon here, in the foreground, sized to this machine");
    up_app->add_option("--state", options->state, "Where it keeps everything. Default: ~/.local/share/larder");
    add_rate_option(*up_app, "--remote-bandwidth", options->remote_bytes_per_second,
                    "What all jobs together may take from remotes, shared out among them. Default: no limit");
    // What it does not know is left to DaemonFlags, so nothing falls through to the App.
    up_app->fallthrough(false);
    up_app->add_flag("--json", context.json, "Say in JSON where it listens");
    options->flags.add_to(*up_app, cache::config_keys());
    up_app->callback([&context, options, up_app] {
        context.command = [&context, options, up_app] { return up(context, *options, *up_app); };
    });
    app.add_subcommand("status", "The daemon: version, sizes, what it serves")->callback([&context] {
        context.command = [&context] { return status(context); };
    });
    app.add_subcommand("version", "This program's version")->callback([&context] {
        context.command = [&context] { return version(context); };
    });
}

}  // namespace larder::cli
