#include "tools/mount/command.h"

#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/server/systemd.h"
#include "cache/control/daemon_config.h"
#include "cache/control/dataset_access.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/background_process.h"
#include "tools/cli/run_program.h"
#include "tools/mount/file_system.h"
#include "tools/mount/mount_table.h"

namespace larder::mount {
namespace {

using cli::Context;
namespace json = boost::json;

constexpr std::uint64_t kReaderMemory_bytes = 32 << 20;
// Programs that have files open may hold up the end of this process for so long.
constexpr std::chrono::seconds kEndMax{2};
constexpr std::array kEnds{SIGINT, SIGTERM, SIGHUP};

struct MountCommand {
    std::string dataset;
    std::string directory;
    std::string socket;
    std::string job = "mount";
    std::string log;
    unsigned timeout_s = 30;
    bool allow_other = false;
    bool kernel_cache = false;
    bool detach = false;
};

// The id of an account, given by name or by number.
template <typename Id, typename Find>
Result<Id> id_of(const std::string& account, Find find) {
    if (const auto known = find(account.c_str())) return *known;
    Id id = 0;
    const auto [rest, error] = std::from_chars(account.data(), account.data() + account.size(), id);
    if (error == std::errc{} && rest == account.data() + account.size()) return id;
    return fail(ErrorCode::not_found, "this machine knows no account \"" + account + "\"");
}

Result<uid_t> user_id(const std::string& name) {
    return id_of<uid_t>(name, [](const char* user) {
        const passwd* const found = ::getpwnam(user);
        return found != nullptr ? std::optional(found->pw_uid) : std::nullopt;
    });
}

Result<gid_t> group_id(const std::string& name) {
    return id_of<gid_t>(name, [](const char* group) {
        const ::group* const found = ::getgrnam(group);
        return found != nullptr ? std::optional(found->gr_gid) : std::nullopt;
    });
}

// The dataset's owner, group and mode, as the daemon's admin socket tells them.
Result<TreeAccess> access_of(const Context& context, const std::string& dataset) {
    const auto answer = cli::call(context, "GET", cli::dataset_target(dataset));
    if (!answer) return std::unexpected(answer.error());
    const json::object& fields = cli::as_object(*answer);
    const auto owner = user_id(cli::text_at(fields, "owner"));
    if (!owner) return std::unexpected(owner.error());
    const auto group = group_id(cli::text_at(fields, "group"));
    if (!group) return std::unexpected(group.error());
    const auto mode = cache::parse_mode(cli::text_at(fields, "mode"));
    if (!mode) return std::unexpected(mode.error());
    return TreeAccess{.owner = *owner, .group = *group, .mode = *mode};
}

// Unmounts a mount of Larder. `lazy`: takes the directory away at once, although programs may have files open.
Result<void> unmount(const std::string& path, bool lazy) {
    // A dead mount has no canonical path of its own, but its parent has.
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(path, error).lexically_normal();
    const bool ends_with_slash = !absolute.has_filename();
    const std::filesystem::path named = ends_with_slash ? absolute.parent_path() : absolute;
    const auto parent = std::filesystem::canonical(named.parent_path(), error);
    if (error) return fail_errno(error.value(), "open " + named.parent_path().string());
    const std::string directory = parent / named.filename();
    const auto mounted = find_mount(directory);
    if (!mounted || mounted->type != kMountType) {
        return fail(ErrorCode::not_found, directory + " is no mount of larder mount");
    }
    if (::geteuid() == 0) {
        if (::umount2(directory.c_str(), lazy ? MNT_DETACH : 0) == 0) return {};
        if (errno == EBUSY) {
            return fail(ErrorCode::internal, directory +
                                                 " is in use: end the programs that have files of it open, "
                                                 "or give --lazy");
        }
        return fail_errno(errno, "unmount " + directory);
    }
    // Users unmount through a program that has the right to.
    std::vector<std::string> words{"fusermount3", "-u"};
    if (lazy) words.emplace_back("-z");
    words.push_back(directory);
    const auto ran = cli::run_program_for_all(words);
    if (!ran) return std::unexpected(ran.error());
    if (ran->status != 0) return fail(ErrorCode::unavailable, "cannot unmount: " + ran->errors);
    return {};
}

// Checks that the directory can be mounted on. Returns its absolute path.
Result<std::string> prepare(const std::string& directory) {
    std::error_code error;
    auto status = std::filesystem::status(directory, error);
    if (error == std::errc::not_connected) {
        // The dead mount of a killed process.
        if (auto unmounted = unmount(directory, true); !unmounted) return std::unexpected(unmounted.error());
        status = std::filesystem::status(directory, error);
    }
    if (error && error != std::errc::no_such_file_or_directory) return fail_errno(error.value(), "open " + directory);
    if (!std::filesystem::is_directory(status)) {
        return fail(ErrorCode::not_found, directory + " is no directory: make it first");
    }
    if (!std::filesystem::is_empty(directory, error) && !error) {
        return fail(ErrorCode::already_exists, directory + " is not empty: mount on an empty directory");
    }
    // The process that serves the mount may have another working directory.
    auto absolute = std::filesystem::canonical(directory, error);
    if (error) return fail_errno(error.value(), "open " + directory);
    return absolute.string();
}

void print_mounted(const Context& context, const MountCommand& command, pid_t pid) {
    if (context.json) {
        cli::print_json(json::object{{"dataset", command.dataset}, {"directory", command.directory}, {"pid", pid}});
    } else {
        std::printf("%s is mounted on %s by process %d; larder unmount %s ends it\n", command.dataset.c_str(),
                    command.directory.c_str(), pid, command.directory.c_str());
    }
    std::fflush(stdout);
}

// Serves until the directory is unmounted or a signal comes.
void serve(FileSystem& files, const sigset_t& ends) {
    std::promise<void> served;
    std::thread waiting([&files, &ends, is_served = served.get_future()] {
        int signal = 0;
        ::sigwait(&ends, &signal);
        files.unmount();
        // A file that is still open keeps the kernel's end of the mount until this process is gone.
        if (is_served.wait_for(kEndMax) == std::future_status::timeout) std::_Exit(cli::kDone);
    });
    files.run();
    served.set_value();
    ::kill(::getpid(), SIGTERM);  // for the thread that waits
    waiting.join();
}

// True also if a signal ends this process before the thread of `serve` takes it.
bool is_interrupted() {
    sigset_t pending;
    ::sigpending(&pending);
    for (const int signal : kEnds) {
        if (sigismember(&pending, signal) != 0) return true;
    }
    return FileSystem::is_interrupted();
}

int run(const Context& context, MountCommand command) {
    // Blocked before any thread begins, so that only the thread that waits for them takes them.
    sigset_t ends;
    sigemptyset(&ends);
    for (const int signal : kEnds) sigaddset(&ends, signal);
    ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
    const auto directory = prepare(command.directory);
    if (!directory) return cli::report(context, directory.error());
    command.directory = *directory;
    const auto pool = SamplePool::open({.connection = {.dataset = command.dataset,
                                                       .job = command.job,
                                                       .socket = command.socket,
                                                       .memory_budget_bytes = kReaderMemory_bytes,
                                                       .reconnect_timeout_ms = std::int64_t{command.timeout_s} * 1000,
                                                       .interrupted = is_interrupted}});
    if (!pool) return cli::report(context, pool.error());
    auto access = access_of(context, command.dataset);
    if (!access && command.allow_other) {
        return cli::report(context, access.error().within("--allow-other needs the dataset's owner, group and mode"));
    }
    if (!access) access = TreeAccess{.owner = ::geteuid(), .group = ::getegid(), .mode = 0400};
    const auto files = FileSystem::mount({.dataset = command.dataset,
                                          .directory = command.directory,
                                          .access = *access,
                                          .allow_other = command.allow_other,
                                          .kernel_cache = command.kernel_cache},
                                         **pool);
    if (!files) return cli::report(context, files.error());
    print_mounted(context, command, ::getpid());
    tell_systemd("READY=1");
    serve(**files, ends);
    return cli::kDone;
}

int run_detached(const Context& context, MountCommand command) {
    const auto directory = prepare(command.directory);
    if (!directory) return cli::report(context, directory.error());
    command.directory = *directory;
    if (command.log.empty()) {
        command.log = cache::default_state_directory() + "/mount-" + command.dataset + ".log";
        std::error_code ignored;  // opening the log reports it
        std::filesystem::create_directories(cache::default_state_directory(), ignored);
    }
    // The last value of a flag counts, so this overrides every form of --detach.
    std::vector<std::string> arguments = cli::own_arguments();
    arguments.insert(std::ranges::find(arguments, "--"), "--detach=false");
    const auto pid =
        cli::run_in_background({.command = "larder mount", .arguments = std::move(arguments), .log = command.log});
    if (!pid) return cli::report(context, pid.error());
    print_mounted(context, command, *pid);
    return cli::kDone;
}

}  // namespace

void add_mount_command(CLI::App& app, Context& context) {
    auto command = std::make_shared<MountCommand>();
    CLI::App* mount = app.add_subcommand(
        "mount", "Show a dataset as a directory of files, which any program can read through the cache");
    mount->add_option("NAME", command->dataset, "The dataset")->required();
    mount->add_option("DIRECTORY", command->directory, "An empty directory")->required();
    mount->add_flag("-d,--detach", command->detach,
                    "Return when the files are there, and serve them in the background");
    mount->add_flag("--allow-other", command->allow_other,
                    "Let other users in, as far as the dataset's owner, group and mode let them read");
    mount->add_flag("--kernel-cache", command->kernel_cache,
                    "Let the kernel keep pages of files, too. Needed by programs that map files shared; the memory is "
                    "beyond the dataset's quota");
    mount->add_option("--job", command->job,
                      "The job in whose name files are read, with its bandwidth. Default: mount");
    mount->add_option("--socket", command->socket,
                      "The daemon's socket for jobs. Default: $LARDER_SOCKET, else ~/.local/share/larder/larderd.sock");
    mount
        ->add_option("--timeout", command->timeout_s,
                     "Seconds that a read waits for a daemon that is away before it fails. Default: 30")
        ->check(CLI::Range(1u, 86'400u));
    mount->add_option("--log", command->log, "With -d: the log. Default: ~/.local/share/larder/mount-NAME.log");
    mount->callback([&context, command] {
        context.command = [&context, command] {
            return command->detach ? run_detached(context, *command) : run(context, *command);
        };
    });
}

void add_unmount_command(CLI::App& app, Context& context) {
    struct Options {
        std::string directory;
        bool lazy = false;
    };
    auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand("unmount", "End a mount of larder mount");
    command->add_option("DIRECTORY", options->directory, "The directory")->required();
    command->add_flag("--lazy", options->lazy, "Take the directory away although programs have files of it open");
    command->callback([&context, options] {
        context.command = [&context, options] {
            const auto unmounted = unmount(options->directory, options->lazy);
            if (!unmounted) return cli::report(context, unmounted.error());
            if (context.json) cli::print_json(json::object{{"directory", options->directory}});
            return static_cast<int>(cli::kDone);
        };
    });
}

}  // namespace larder::mount
