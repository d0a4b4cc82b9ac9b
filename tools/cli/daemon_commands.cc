#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/machine_memory.h"
#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/background_process.h"
#include "tools/cli/context.h"
#include "tools/cli/daemon_flags.h"
#include "tools/cli/embedded_allocator.h"
#include "tools/cli/run_daemon.h"
#include "tools/cli/table.h"
#include "tools/cli/unit_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

constexpr std::uint64_t kMemoryDivisor = 10;  // datasets get the machine's memory divided by this
constexpr std::uint64_t kDiskDivisor = 2;  // datasets get free disk space plus an earlier run's cache, divided by this

struct UpOptions {
    std::string state;
    bool detach = false;
    std::optional<double> remote_bytes_per_second;
    DaemonFlags flags;
};

// Formats whole MiB, so that the printed size is the size used.
std::string whole_mib(std::uint64_t bytes) {
    return std::to_string(bytes >> 20) + " MiB";
}

Result<std::uint64_t> free_disk_bytes(const std::string& directory) {
    struct statvfs status{};
    if (::statvfs(directory.c_str(), &status) != 0) return fail_errno(errno, "statvfs " + directory);
    return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

// Returns the size, and a note if the file system of the state directory is smaller.
std::string disk_text(const cache::DaemonConfig& config) {
    std::string text = format_bytes(config.disk_bytes);
    std::error_code error;
    const auto space = std::filesystem::space(config.state_directory, error);
    if (error || config.disk_bytes <= space.capacity) return text;
    return text + ", but its file system has only " + format_bytes(space.capacity, unit_family_of(config.disk_bytes));
}

bool has_key(const std::vector<cache::ConfigOverride>& overrides, std::string_view key) {
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

// Chooses settings from the machine where the user gave none.
Result<cache::DaemonConfig> choose_config(const UpOptions& options, std::vector<cache::ConfigOverride> overrides) {
    if (!options.state.empty()) overrides.push_back({"state_directory", options.state});
    auto config = cache::load_config("", overrides);
    if (!config) return config;
    // Absolute, because users copy the paths that are printed to shells in other directories.
    std::error_code failure;
    const std::string directory = std::filesystem::absolute(config->state_directory, failure).lexically_normal();
    if (failure) return fail_errno(failure.value(), "find the directory " + config->state_directory + " is in");
    overrides.push_back({"state_directory", directory});
    std::filesystem::create_directories(directory, failure);
    if (failure) {
        Error error = errno_error(failure.value(), "create " + directory);
        error.message += "; --state names another directory";
        return std::unexpected(std::move(error));
    }
    if (!has_key(overrides, "memory"))
        overrides.push_back({"memory", whole_mib(machine_memory().bytes / kMemoryDivisor)});
    if (!has_key(overrides, "disk")) {
        const auto free_bytes = free_disk_bytes(directory);
        if (!free_bytes) return std::unexpected(free_bytes.error());
        overrides.push_back({"disk", whole_mib((*free_bytes + cached_disk_bytes(directory)) / kDiskDivisor)});
    }
    if (!has_key(overrides, "admin_socket_mode")) overrides.push_back({"admin_socket_mode", "0600"});
    if (!has_key(overrides, "allocator.endpoint")) {
        overrides.push_back({"allocator.endpoint", directory + "/allocator.sock"});
        if (!has_key(overrides, "allocator.rates"))
            overrides.push_back(
                {"allocator.rates", options.remote_bytes_per_second.value_or(0) > 0 ? "true" : "false"});
    }
    return cache::load_config("", overrides);
}

std::string page_text(const cache::DaemonConfig& config) {
    std::string page = "http://" + config.metrics_listen + "/";
    if (config.page_anyone_reads) return page;
    if (!config.page_token_file.empty()) return page + ", for who has the token in " + config.page_token_file;
    return page + ", for nobody: give --page.anyone-reads true, or --page.token-file FILE";
}

// `log`: the daemon's log file; empty: it logs on stderr.
void print_start(const Context& context, const cache::DaemonConfig& config, pid_t pid, const std::string& log) {
    if (context.json) {
        json::object start{{"pid", pid},
                           {"state_directory", config.state_directory},
                           {"socket", config.socket_path},
                           {"admin_socket", config.admin_socket_path},
                           {"allocator", config.allocator.endpoint},
                           {"memory_bytes", config.memory_bytes},
                           {"disk_bytes", config.disk_bytes}};
        if (!config.metrics_listen.empty()) start["page"] = "http://" + config.metrics_listen + "/";
        if (!log.empty()) start["log"] = log;
        print_json(start);
    } else {
        const std::string ends = (pid == ::getpid() ? "Ctrl-C or " : "") + down_command(config.state_directory);
        std::vector<std::pair<std::string, std::string>> values{
            {"larder daemon is up", "pid " + std::to_string(pid) + "; " + ends + " stops it"},
            {"  state", config.state_directory},
            {"  memory for datasets", format_bytes(config.memory_bytes)},
            {"  disk for datasets", disk_text(config)},
            {"  jobs connect to", config.socket_path},
            {"  quotas are set by", config.allocator.endpoint}};
        if (!config.metrics_listen.empty()) values.emplace_back("  page", page_text(config));
        if (!log.empty()) values.emplace_back("  log", log);
        values.emplace_back("  next", "larder dataset add NAME DIRECTORY");
        std::fputs(name_value_text(values).c_str(), stdout);
    }
    std::fflush(stdout);
}

int up_in_background(const Context& context, const cache::DaemonConfig& config) {
    // Checked here, before the log opens, so that the error does not go into the log of the running process.
    if (auto lock = lock_up(config.state_directory); !lock) return report(context, lock.error());
    // The last value of a flag counts, so this overrides every form of --detach.
    std::vector<std::string> arguments = own_arguments();
    arguments.emplace_back("--detach=false");
    const std::string output = config.state_directory + "/up.log";
    const auto pid = run_in_background({.command = "larder up", .arguments = std::move(arguments), .log = output});
    if (!pid) return report(context, pid.error());
    print_start(context, config, *pid, config.log_file.empty() ? output : config.log_file);
    return kDone;
}

int up(const Context& context, const UpOptions& options, const CLI::App& app) {
    if (options.remote_bytes_per_second && !(*options.remote_bytes_per_second > 0)) {
        return report(context, Error{.code = ErrorCode::invalid_argument,
                                     .message = "--remote-bandwidth: give a rate above 0, or leave it out for no "
                                                "limit"});
    }
    const auto overrides = options.flags.overrides(app);
    if (!overrides) return report(context, overrides.error());
    const auto elsewhere = std::ranges::find(*overrides, "allocator.endpoint", &cache::ConfigOverride::key);
    if (options.remote_bytes_per_second && elsewhere != overrides->end()) {
        return report(
            context,
            Error{.code = ErrorCode::invalid_argument,
                  .message = "--remote-bandwidth: the allocator at " + elsewhere->value +
                             " divides the remote bandwidth: set remote_bandwidth there, and leave it out here"});
    }
    const auto config = choose_config(options, *overrides);
    if (!config) return report(context, config.error());
    if (options.detach) return up_in_background(context, *config);
    const auto lock = lock_up(config->state_directory);
    if (!lock) return report(context, lock.error());
    std::unique_ptr<EmbeddedAllocator> allocator;
    const auto started = [&]() -> Result<void> {
        if (!has_key(*overrides, "allocator.endpoint")) {
            auto created =
                EmbeddedAllocator::start({.state_directory = config->state_directory,
                                          .socket = config->allocator.endpoint,
                                          .remote_bytes_per_second = options.remote_bytes_per_second.value_or(0)});
            if (!created) return std::unexpected(created.error());
            allocator = std::move(*created);
        }
        print_start(context, *config, ::getpid(), config->log_file);
        return {};
    };
    const auto ran =
        run_daemon({.config = *config, .reload = {}, .started = started, .ended = [&] { allocator.reset(); }});
    return ran ? kDone : report(context, ran.error());
}

struct DownOptions {
    std::string state;
    unsigned timeout_s = 60;
};

int down(const Context& context, const DownOptions& options) {
    // Without --state, the daemon that all other commands ask.
    const std::string state =
        options.state.empty() ? std::filesystem::path(context.admin_socket).parent_path().string() : options.state;
    const auto ended = stop_up(state, options.timeout_s);
    if (!ended) return report(context, ended.error());
    if (context.json) {
        print_json(json::object{{"pid", *ended ? json::value(**ended) : json::value(nullptr)}});
    } else if (*ended) {
        std::printf("larder daemon is down (it was pid %d)\n", **ended);
    } else {
        std::printf("no larder up runs on %s%s\n", state.c_str(),
                    options.state.empty() ? "; --state names another state directory" : "");
    }
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
    CLI::App* up_app =
        app.add_subcommand("up", "Run a daemon sized to this machine: in the foreground, or in the background with -d");
    up_app->add_flag(
        "-d,--detach", options->detach,
        "Run in the background: return when the daemon serves, and print where its log is. larder down stops it");
    up_app->add_option("--state", options->state,
                       "Directory for everything the daemon keeps. Default: ~/.local/share/larder");
    add_rate_option(*up_app, "--remote-bandwidth", options->remote_bytes_per_second,
                    "Remote bandwidth of all jobs together, divided among them. Default: no limit");
    // Unknown flags are left to DaemonFlags, so nothing falls through to the App.
    up_app->fallthrough(false);
    up_app->add_flag("--json", context.json, "Print where the daemon listens as JSON");
    options->flags.add_to(*up_app, cache::config_keys());
    up_app->callback([&context, options, up_app] {
        context.command = [&context, options, up_app] { return up(context, *options, *up_app); };
    });
    auto down_options = std::make_shared<DownOptions>();
    CLI::App* down_app = app.add_subcommand(
        "down", "Stop the daemon that larder up started on this machine, and wait until it has ended");
    down_app->add_option("--state,--state-directory", down_options->state,
                         "The --state that larder up was given. Default: the directory of the admin socket");
    down_app->add_option("--timeout", down_options->timeout_s, "Seconds to wait. Default: 60")
        ->check(CLI::Range(1, 3600));
    down_app->callback([&context, down_options] {
        context.command = [&context, down_options] { return down(context, *down_options); };
    });
    app.add_subcommand("version", "Print the version of this program")->callback([&context] {
        context.command = [&context] { return version(context); };
    });
}

}  // namespace larder::cli
