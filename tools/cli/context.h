#pragma once

// State shared by every subcommand of `larder`: the daemon's address, whether JSON is wanted, how a command ends. A
// subcommand registers itself on the App and, if the user chose it, leaves its action in `command`.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/server/http_client.h"

namespace CLI {
class App;
}

namespace larder::cli {

// The exit codes documented in `larder --help`.
enum ExitCode : int {
    kDone = 0,
    kFailed = 1,
    kUsage = 2,
    kUnreachable = 3,
    kNotFound = 4,
    kRefused = 5,
    kRemoteAway = 6
};

// How to reach the cluster's allocator; see base/server/http_client.h. Empty: not named.
struct AllocatorAccess {
    std::string endpoint;
    HttpCredentials credentials;
    bool waits_for_leader = true;  // of several allocators, if none leads at present
};

struct Context {
    std::string admin_socket;
    AllocatorAccess allocator;
    bool json = false;
    std::span<char* const> arguments;  // of this process, as they were given
    std::function<int()> command;
};

// Returns the socket that training jobs of the daemon use: $LARDER_SOCKET, else larderd.sock beside the admin socket.
std::string jobs_socket(const Context& context);

// Reports an error on stderr, with --json also as {"error": ...} on stdout; returns the exit code that fits.
int report(const Context& context, const Error& error);

void add_admin_socket_option(CLI::App& app, Context& context);
void add_allocator_options(CLI::App& app, Context& context);  // --allocator and its credentials
void add_daemon_commands(CLI::App& app, Context& context);    // up, down, version
// completion, man. `man` prints the page of the command that the words name.
void add_shell_commands(CLI::App& app, Context& context,
                        const std::function<int(const std::vector<std::string>&)>& man);
void add_doctor_command(CLI::App& app, Context& context);          // doctor
void add_status_command(CLI::App& app, Context& context);          // status
void add_dataset_commands(CLI::App& app, Context& context);        // dataset ...
void add_pack_command(CLI::App& dataset, Context& context);        // dataset pack
void add_cat_command(CLI::App& app, Context& context);             // cat
void add_ls_samples_command(CLI::App& dataset, Context& context);  // dataset ls-samples
void add_quota_commands(CLI::App& app, Context& context);          // quota ls|get|set
void add_job_commands(CLI::App& app, Context& context);            // jobs, job limit
void add_job_registration(CLI::App& job, Context& context);        // job register|ls|rm
void add_submit_command(CLI::App& job, Context& context);          // job submit
void add_queue_commands(CLI::App& job, Context& context);          // job cancel|why|show
void add_logs_command(CLI::App& job, Context& context);            // job logs
void add_pin_command(CLI::App& quota, Context& context);           // quota pin
void add_node_commands(CLI::App& app, Context& context);           // node ls|rm
void add_remote_command(CLI::App& app, Context& context);          // remote set|reset
void add_plan_command(CLI::App& app, Context& context);            // plan
void add_whatif_command(CLI::App& app, Context& context);          // whatif
void add_events_command(CLI::App& app, Context& context);          // events
void add_top_command(CLI::App& app, Context& context);             // top
void add_trace_command(CLI::App& app, Context& context);           // trace

}  // namespace larder::cli
