#include "tools/cli/run_app.h"

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>

#include "base/environment.h"
#include "cache/control/daemon_config.h"
#include "tools/cli/describe_program.h"
#include "tools/cli/usage_error.h"

namespace larder::cli {
namespace {

constexpr const char* kServiceSocket = "/run/larder/admin.sock";

// Returns the exit code of a command, or another one if a part of its output could not be written.
int end_output(int code) {
    const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if (is_written || code != kDone) return code;
    std::fputs("larder: standard output could not be written: is its disk full?\n", stderr);
    return kFailed;
}

}  // namespace

int run_app(CLI::App& app, Context& context, int argc, char** argv) {
    context.arguments = {argv, static_cast<std::size_t>(argc)};
    const ProgramDescription description{.line = "larder", .names = names_of_daemon(context)};
    if (const auto described = describe_program(app, description, argc, argv)) return *described;
    try {
        app.parse(argc, argv);
        return context.command ? end_output(context.command()) : static_cast<int>(kUsage);
    } catch (const CLI::ParseError& error) {
        return end_parse(app, error, asks_for_json({argv, static_cast<std::size_t>(argc)}));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "larder: %s\n", error.what());
        return kFailed;
    }
}

void add_admin_socket_option(CLI::App& app, Context& context) {
    context.admin_socket = environment("LARDER_ADMIN_SOCKET");
    if (context.admin_socket.empty()) {
        context.admin_socket = cache::default_state_directory() + "/admin.sock";
        // A user's own daemon comes before the machine's.
        if (::access(context.admin_socket.c_str(), F_OK) != 0 && ::access(kServiceSocket, F_OK) == 0) {
            context.admin_socket = kServiceSocket;
        }
    }
    app.add_option("--admin-socket", context.admin_socket,
                   "The daemon's admin socket. Default: $LARDER_ADMIN_SOCKET, else ~/.local/share/larder/admin.sock, "
                   "else the service's, /run/larder/admin.sock, if only that exists");
}

int hand_over(const char* command, char** argv) {
    std::error_code error;
    const auto program_directory = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
    const auto program = program_directory / (std::string("larder-") + command);
    ::execv(program.c_str(), argv);
    std::fprintf(stderr, "larder: cannot run %s: %s\n", program.c_str(), std::strerror(errno));
    return kFailed;
}

}  // namespace larder::cli
