// larder-slurm: the steps of Slurm's burst_buffer.lua, prolog and epilog (scheduler/engines/slurm), and the agent that
// lets Larder decide what Slurm runs. The steps of burst_buffer.lua print "ok" or "error" and then their answer,
// because Lua 5.1 cannot see an exit code.

#include <CLI/CLI.hpp>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/server/config_text.h"
#include "base/server/config_values.h"
#include "base/units.h"
#include "scheduler/engines/slurm/followed_jobs.h"
#include "scheduler/engines/slurm/place_agent.h"
#include "scheduler/engines/slurm/placed_environment.h"
#include "tools/cli/context.h"
#include "tools/cli/describe_program.h"
#include "tools/cli/run_program.h"
#include "tools/cli/table.h"

namespace {

using larder::ErrorCode;
using larder::Result;
namespace slurm = larder::scheduler::slurm;

constexpr const char* kConfigFile = "/etc/larder/slurm.toml";
constexpr std::int64_t kSecond_ns = 1'000'000'000;
// slurmctld waits for these steps.
constexpr std::int64_t kStepLimit_ns = 80'000'000;
constexpr std::int64_t kLeast_ns = 10'000'000;
// Steps that need no allocator may take longer: only a file system that hangs keeps them. Slurm holds a job whose
// environment it does not get.
constexpr std::int64_t kLocalLimit_ns = 2 * kSecond_ns;
constexpr std::int64_t kNodeStepLimit_ns = 2 * kSecond_ns;
// Slurm ends setup after OtherTimeout, 300 s by default, and then holds the job.
constexpr std::int64_t kBeginLimit_ns = 240 * kSecond_ns;
constexpr std::int64_t kPoll_ns = kSecond_ns / 2;
constexpr std::int64_t kPollMax_ns = 10 * kSecond_ns;
constexpr std::int64_t kPollPart = 20;  // a stage-in waits this many times as long as the answer took
constexpr std::int64_t kRetry_ns = 2 * kSecond_ns;
// While a job is warmed, Slurm is asked so often where it expects to start the job.
constexpr std::int64_t kExpected_ns = 10 * kSecond_ns;
constexpr std::int64_t kExpectedMax_ns = 120 * kSecond_ns;
constexpr std::chrono::seconds kSlurmLimit(60);  // of one command of Slurm

struct Config {
    slurm::FollowOptions allocator;
    std::string socket;
    std::string node;
    std::int64_t limit_ns = kStepLimit_ns;
    std::string partitions;                                       // that Larder schedules
    std::map<std::string, std::string, std::less<>> hierarchies;  // by partition
    std::int64_t look_ns = kSecond_ns;
};

using Rule = larder::ConfigRule<Config>;
using larder::set_config_path;
using larder::set_config_text;
using larder::set_member;
constexpr std::array kRules{
    Rule{{"socket", larder::kConfigPath, "the socket of each node's larderd, for jobs"},
         set_member<set_config_path, &Config::socket>},
    Rule{{"node", "a name, in text", "this machine's name at the allocator"},
         set_member<set_config_text, &Config::node>},
    Rule{{"limit", "a time from \"10 ms\" to \"10 s\", in text", "how long slurmctld may wait for an answer"},
         set_member<larder::set_config_duration<10'000'000, 10 * kSecond_ns>, &Config::limit_ns>},
    Rule{{"partitions", "names with blanks between them, in text", "the partitions in which Larder decides"},
         set_member<set_config_text, &Config::partitions>},
    Rule{{"partition.NAME.hierarchy", "a name, in text", "the hierarchy of cells to which the partition's jobs keep"},
         larder::set_entry<set_config_text, &Config::hierarchies>},
    Rule{{"look", "a time from \"100 ms\" to \"60 s\", in text", "how often `larder-slurm place` looks at Slurm"},
         set_member<larder::set_config_duration<kSecond_ns / 10, 60 * kSecond_ns>, &Config::look_ns>},
    Rule{{"allocator.endpoint", "an endpoint, in text", "where the allocator is"},
         set_member<set_config_text, &Config::allocator, &slurm::FollowOptions::endpoint>},
    Rule{{"allocator.token_file", larder::kConfigPath, "file with the bearer token"},
         set_member<set_config_path, &Config::allocator, &slurm::FollowOptions::credentials,
                    &larder::HttpCredentials::token_file>},
    Rule{{"allocator.ca", larder::kConfigPath, "PEM file of the authorities"},
         set_member<set_config_path, &Config::allocator, &slurm::FollowOptions::credentials,
                    &larder::HttpCredentials::ca_file>},
    Rule{{"allocator.certificate", larder::kConfigPath, "PEM file of the client's certificate"},
         set_member<set_config_path, &Config::allocator, &slurm::FollowOptions::credentials,
                    &larder::HttpCredentials::certificate_file>},
    Rule{{"allocator.key", larder::kConfigPath, "PEM file of the client's key"},
         set_member<set_config_path, &Config::allocator, &slurm::FollowOptions::credentials,
                    &larder::HttpCredentials::key_file>}};

Result<Config> load_config(const std::string& path) {
    const std::span<const Rule> rules(kRules);
    return larder::load_config_text(path, [&](std::string_view toml, std::string_view source) -> Result<Config> {
        const auto text = larder::read_config_text(toml, source, larder::keys_of(rules), {});
        if (!text) return std::unexpected(text.error());
        Config config;
        for (const larder::ConfigSetting& setting : text->settings) {
            if (auto applied = larder::apply_setting(config, rules, setting); !applied) {
                return std::unexpected(applied.error());
            }
        }
        if (config.allocator.endpoint.empty()) return larder::config_error(source, "allocator.endpoint is missing");
        return config;
    });
}

// The answer when the time is over. It is written before the timer starts.
std::array<char, 512> last_words{};

// Returns how long ago the kernel started this process. Loading its libraries takes time, too, on a busy machine.
std::int64_t age_ns() {
    const auto stat = larder::read_file("/proc/self/stat");
    if (!stat) return 0;
    // The 20th field after the name, which ends with the last parenthesis.
    std::istringstream fields(stat->substr(std::min(stat->size(), stat->rfind(')') + 1)));
    std::string field;
    for (int i = 0; i < 20; ++i) fields >> field;
    const std::int64_t started_ticks = std::strtoll(field.c_str(), nullptr, 10);
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    const std::int64_t started_ns = started_ticks * (kSecond_ns / ::sysconf(_SC_CLK_TCK));
    return std::max<std::int64_t>(0, now.tv_sec * kSecond_ns + now.tv_nsec - started_ns);
}

// Ends the program `limit_ns` after its start, but not at once, whatever it waits for: a lookup of a host name, a file
// on a mount that hangs, an allocator. Then the answer is the error `why`. Replaces an earlier limit.
void end_after(std::int64_t limit_ns, const std::string& why) {
    itimerval timer{};
    ::setitimer(ITIMER_REAL, &timer, nullptr);
    const std::string words = "error\n" + why + "\n";
    std::strncpy(last_words.data(), words.c_str(), last_words.size() - 1);
    std::signal(SIGALRM, [](int) {
        static_cast<void>(!::write(STDOUT_FILENO, last_words.data(), std::strlen(last_words.data())));
        ::_exit(1);
    });
    // slurmctld blocks signals, and its children inherit that.
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    ::pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
    const std::int64_t left_ns = std::max(kLeast_ns, limit_ns - age_ns());
    timer.it_value.tv_sec = left_ns / kSecond_ns;
    timer.it_value.tv_usec = left_ns % kSecond_ns / 1000;
    ::setitimer(ITIMER_REAL, &timer, nullptr);
}

int print_error(const larder::Error& error) {
    std::printf("error\n%s\n", error.message.c_str());
    return larder::cli::kFailed;
}

template <typename Value>
int print_result(const Result<Value>& result) {
    if (!result) return print_error(result.error());
    if constexpr (std::is_void_v<Value>) {
        std::puts("ok");
    } else {
        std::printf("ok\n%s", result->c_str());
    }
    return larder::cli::kDone;
}

// Slurm calls these steps for scripts with a #BB_LUA line only.
Result<slurm::JobRequest> request_of(const std::string& script) {
    const auto text = larder::read_file(script);
    if (!text) return std::unexpected(text.error());
    auto request = slurm::parse_job_request(*text);
    if (!request) return std::unexpected(request.error());
    if (!*request) return larder::fail(ErrorCode::invalid_argument, "the script has no line #BB_LUA larder");
    return **request;
}

bool may_pass(const larder::Error& error) {
    return error.code == ErrorCode::unavailable || error.code == ErrorCode::timeout ||
           error.code == ErrorCode::no_space;
}

// Repeats `step` until it succeeds, fails for good, or `limit_ns` have passed.
Result<void> retry(const std::function<Result<void>()>& step, std::optional<std::int64_t> limit_ns = {}) {
    const larder::SteadyClock clock;
    const std::int64_t begun_ns = clock.now_ns();
    while (true) {
        auto done = step();
        if (done || !may_pass(done.error())) return done;
        if (limit_ns && clock.now_ns() - begun_ns >= *limit_ns) return done;
        larder::sleep_ns(kRetry_ns);
    }
}

Result<void> check(const Config& config, const std::string& script) {
    const auto request = request_of(script);
    if (!request) return std::unexpected(request.error());
    auto checked = slurm::FollowedJobs(config.allocator).check(*request);
    if (checked || checked.error().code != ErrorCode::unavailable) return checked;
    return larder::fail(ErrorCode::unavailable,
                        checked.error().message + "; submit again once it does, or without the line #BB_LUA larder");
}

Result<void> begin(const Config& config, const std::string& job, std::uint32_t user, const std::string& script) {
    const auto request = request_of(script);
    if (!request) return std::unexpected(request.error());
    slurm::FollowedJobs jobs(config.allocator);
    return retry([&] { return jobs.begin(job, user, *request); }, kBeginLimit_ns);
}

// The nodes where Slurm expects to start a job.
class ExpectedNodes {
public:
    explicit ExpectedNodes(std::string job) : job_(std::move(job)) {}

    // Asks Slurm, if the last answer is older than `age_ns`. With many jobs squeue takes longer, and more stage-ins
    // ask. Without an answer the nodes stay as they were.
    const std::vector<std::string>& get(std::int64_t age_ns) {
        const std::int64_t now_ns = clock_.now_ns();
        const std::int64_t rest_ns = std::clamp(kPollPart * took_ns_, age_ns, kExpectedMax_ns);
        if (asked_ns_ && now_ns - *asked_ns_ < rest_ns) return nodes_;
        asked_ns_ = now_ns;
        if (auto nodes = ask()) nodes_ = *std::move(nodes);
        took_ns_ = clock_.now_ns() - now_ns;
        return nodes_;
    }

private:
    static std::optional<std::string> output_of(const std::vector<std::string>& command) {
        auto ran = larder::cli::run_program_for_all(command, {}, kSlurmLimit);
        if (!ran || ran->status != 0) return std::nullopt;
        return std::move(ran->output);
    }
    std::optional<std::vector<std::string>> ask() const {
        const auto squeue = output_of({"squeue", "--noheader", "--jobs", job_, "--format", "%A %Y"});
        if (!squeue) return std::nullopt;
        const std::string list = slurm::scheduled_nodes(*squeue, job_);
        if (list.empty()) return std::vector<std::string>{};
        const auto names = output_of({"scontrol", "show", "hostnames", list});
        if (!names) return std::nullopt;
        std::istringstream words(*names);
        std::vector<std::string> nodes;
        for (std::string name; words >> name;) nodes.push_back(std::move(name));
        return nodes;
    }

    std::string job_;
    larder::SteadyClock clock_;
    std::optional<std::int64_t> asked_ns_;
    std::int64_t took_ns_ = 0;
    std::vector<std::string> nodes_;
};

Result<void> stage_in(const Config& config, const std::string& job, const std::string& script) {
    const auto request = request_of(script);
    if (!request) return std::unexpected(request.error());
    slurm::FollowedJobs jobs(config.allocator);
    ExpectedNodes expected(job);
    std::vector<std::string> sent;
    const auto reserve = [&](std::int64_t age_ns) -> Result<void> {
        const std::vector<std::string> nodes =
            request->cache_bytes > 0 ? expected.get(age_ns) : std::vector<std::string>{};
        auto reserved = jobs.reserve(job, *request, nodes);
        if (reserved) sent = nodes;
        return reserved;
    };
    if (auto reserved = retry([&] { return reserve(0); }); !reserved) return reserved;
    const larder::SteadyClock clock;
    while (true) {
        const std::int64_t asked_ns = clock.now_ns();
        const auto staged = jobs.is_staged(job);
        if (!staged && !may_pass(staged.error())) return std::unexpected(staged.error());
        if (staged.value_or(false)) return {};
        // The job has its reservation already. If it is gone, the next look says so.
        if (request->cache_bytes > 0 && expected.get(kExpected_ns) != sent) static_cast<void>(reserve(kExpected_ns));
        // With many jobs an answer takes longer, and more stage-ins ask.
        larder::sleep_ns(std::clamp(kPollPart * (clock.now_ns() - asked_ns), kPoll_ns, kPollMax_ns));
    }
}

Result<std::string> environment(const Config& config, const std::string& job, const std::string& script) {
    const auto request = request_of(script);
    if (!request) return std::unexpected(request.error());
    std::string lines = "LARDER_JOB=" + slurm::job_name(job) + "\nLARDER_DATASET=" + request->dataset + "\n";
    if (!config.socket.empty()) lines += "LARDER_SOCKET=" + config.socket + "\n";
    return lines;
}

// Prints nothing if the job asks for no bandwidth. Slurm refuses licences that it does not have without saying why, so
// the job is checked first.
Result<std::string> licences(const Config& config, const std::string& script) {
    const auto request = request_of(script);
    if (!request) return std::unexpected(request.error());
    const std::uint64_t count = slurm::licence_count(*request);
    if (count == 0) return "";
    if (auto checked = check(config, script); !checked) return std::unexpected(checked.error());
    return "remoteio:" + std::to_string(count) + "\n";
}

// Slurm runs no teardown of a job whose state it has lost. When a job is cancelled in its stage-in, Slurm may kill the
// teardown together with the stage-in, and not run it again.
Result<void> release_ended(const Config& config) {
    slurm::FollowedJobs jobs(config.allocator);
    const auto registered = jobs.registered();
    if (!registered) return std::unexpected(registered.error());
    if (registered->empty()) return {};
    // Asked after the allocator: a job is in Slurm before it is registered.
    const auto squeue = larder::cli::run_program({"squeue", "--noheader", "--states=all", "--format", "%A %T"});
    if (!squeue) return std::unexpected(squeue.error());
    const auto unended = slurm::unended_jobs(*squeue);
    for (const std::string& job : *registered) {
        if (unended.contains(job)) continue;
        if (auto released = jobs.release(job); !released) return released;
    }
    return {};
}

std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
    return larder::cli::or_dash(text);
}

Result<std::string> status_text(const Config& config) {
    const auto status = slurm::FollowedJobs(config.allocator).status();
    if (!status) return std::unexpected(status.error());
    larder::cli::Table datasets({"DATASET", ">SIZE", ">CACHED", ">C/D", ">QUOTA", ">GRANTED", "JOBS"});
    for (const auto& dataset : status->datasets) {
        datasets.add({dataset.name, larder::format_bytes(dataset.size_bytes),
                      larder::format_bytes(dataset.cached_bytes),
                      larder::cli::format_part(static_cast<double>(dataset.cached_bytes),
                                               static_cast<double>(dataset.size_bytes)),
                      larder::format_bytes(dataset.quota_bytes),
                      larder::format_bytes_per_second(dataset.granted_bytes_per_second), joined(dataset.jobs)});
    }
    larder::cli::Table jobs({"JOB", "STATE", "DATASET", ">RESERVED", ">GRANTED", ">GPUS", "NODES"});
    for (const auto& job : status->jobs) {
        const bool runs = job.state == "runs";
        jobs.add({job.name, job.state, larder::cli::or_dash(job.dataset),
                  job.cache_bytes > 0 ? larder::format_bytes(job.cache_bytes) : "-",
                  runs ? larder::format_bytes_per_second(job.granted_bytes_per_second) : "-",
                  runs ? std::to_string(job.gpus) : "-", joined(job.nodes)});
    }
    std::string text = "remote " + larder::format_bytes_per_second(status->remote_bytes_per_second) + "\n";
    if (!datasets.empty()) text += "\n" + datasets.text();
    if (!jobs.empty()) text += "\n" + jobs.text();
    return text;
}

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

// Slurm runs this on each node of a job, with the job in the environment.
int place(const Config& config, bool starts) {
    const std::string job = variable("SLURM_JOB_ID");
    const std::string node = config.node.empty() ? variable("SLURMD_NODENAME") : config.node;
    const auto gpus = slurm::count_gpus(variable("SLURM_JOB_GPUS"));
    if (job.empty() || node.empty()) {
        std::fprintf(stderr, "larder-slurm: SLURM_JOB_ID or SLURMD_NODENAME is not set: Slurm runs this as prolog\n");
        return larder::cli::kUsage;
    }
    const auto placed =
        slurm::FollowedJobs(config.allocator).place(job, node, starts ? std::optional(gpus.value_or(0)) : std::nullopt);
    if (placed) return larder::cli::kDone;
    std::fprintf(stderr, "larder-slurm: %s\n", placed.error().message.c_str());
    return larder::cli::kFailed;
}

std::vector<std::string> partitions_of(const Config& config) {
    std::istringstream words(config.partitions);
    std::vector<std::string> names;
    std::string name;
    while (words >> name) names.push_back(name);
    return names;
}

int place_jobs(const Config& config) {
    slurm::PlaceOptions options{.endpoint = config.allocator.endpoint, .credentials = config.allocator.credentials};
    options.partitions = partitions_of(config);
    options.hierarchies = config.hierarchies;
    options.look_ns = config.look_ns;
    if (options.partitions.empty()) {
        std::fprintf(stderr, "larder-slurm: the config has no partitions: name those in which Larder decides\n");
        return larder::cli::kUsage;
    }
    for (const auto& [partition, _] : config.hierarchies) {
        if (std::ranges::find(options.partitions, partition) != options.partitions.end()) continue;
        std::fprintf(stderr, "larder-slurm: [partition.%s]: %s is not among the partitions in which Larder decides\n",
                     partition.c_str(), partition.c_str());
        return larder::cli::kUsage;
    }
    // A command that ends before it has read its input must not end the agent.
    std::signal(SIGPIPE, SIG_IGN);
    // Slurm's commands print seconds since 1970.
    ::setenv("SLURM_TIME_FORMAT", "%s", 1);
    options.run_program = [](const auto& arguments, const auto& input) -> Result<slurm::ProgramEnd> {
        auto ran = larder::cli::run_program_for_all(arguments, input, kSlurmLimit);
        if (!ran) return std::unexpected(ran.error());
        return slurm::ProgramEnd{ran->status, std::move(ran->output), std::move(ran->errors)};
    };
    options.log = [](const std::string& text) { std::fprintf(stderr, "larder-slurm: %s\n", text.c_str()); };
    const larder::Error error = slurm::PlaceAgent(std::move(options)).run();
    std::fprintf(stderr, "larder-slurm: %s\n", error.message.c_str());
    return larder::cli::kFailed;
}

// Slurm runs this as the job's user, with the job in the environment, before each of its tasks. It adds what is printed
// to the task's environment, and starts the task whatever the exit status.
int print_task_environment(const Config& config) {
    for (const auto& [name, value] : slurm::placed_environment(variable, partitions_of(config), config.socket)) {
        std::printf("export %s=%s\n", name.c_str(), value.c_str());
    }
    return larder::cli::kDone;
}

int run(int argc, char** argv) {
    CLI::App app("larder-slurm: connects Slurm with Larder's allocator; Slurm's scripts run it, see docs/slurm.md");
    app.name("larder-slurm");
    app.set_version_flag("--version", "larder-slurm " LARDER_VERSION);
    app.require_subcommand(1);
    std::string path = variable("LARDER_SLURM_CONFIG");
    if (path.empty()) path = kConfigFile;
    app.add_option("--config", path, "The TOML file. Default: $LARDER_SLURM_CONFIG, else /etc/larder/slurm.toml");
    std::string job;
    std::string script;
    std::uint32_t user = 0;
    std::function<int(Config)> step;
    std::int64_t limit_ns = 0;
    const auto add = [&](const char* name, const char* help, std::int64_t step_limit_ns, auto run_step) {
        return app.add_subcommand(name, help)->callback([&step, &limit_ns, step_limit_ns, run_step] {
            step = run_step;
            limit_ns = step_limit_ns;
        });
    };
    const auto needs_job = [&](CLI::App* command) {
        command->add_option("JOB", job, "Slurm's number of the job")->required();
        return command;
    };
    const auto needs_script = [&](CLI::App* command) {
        command->add_option("SCRIPT", script, "The batch script")->required();
    };
    needs_script(add("check", "Check what a batch script asks for", kStepLimit_ns,
                     [&](const Config& config) { return print_result(check(config, script)); }));
    CLI::App* const begins = needs_job(add("begin", "Register a job with the allocator", 0, [&](const Config& config) {
        return print_result(begin(config, job, user, script));
    }));
    begins->add_option("UID", user, "The job's user")->required();
    needs_script(begins);
    needs_script(needs_job(add("stage-in", "Reserve a job's cache and bandwidth, and wait until its cache is filled", 0,
                               [&](const Config& config) { return print_result(stage_in(config, job, script)); })));
    needs_script(needs_job(add("environment", "Print the variables of a job", kLocalLimit_ns,
                               [&](const Config& config) { return print_result(environment(config, job, script)); })));
    needs_script(add("licences", "Check a batch script, and print the licences that it needs", kStepLimit_ns,
                     [&](const Config& config) { return print_result(licences(config, script)); }));
    needs_job(add("release", "Release what a job had reserved", 0, [&](const Config& config) {
        return print_result(slurm::FollowedJobs(config.allocator).release(job));
    }));
    add("release-ended", "Release the jobs that have ended, or that Slurm no longer knows", 0,
        [](const Config& config) { return print_result(release_ended(config)); });
    add("pools", "Print the cluster's cache as a pool", kStepLimit_ns,
        [](const Config& config) { return print_result(slurm::FollowedJobs(config.allocator).pools_json()); });
    add("status", "Print datasets and jobs", kStepLimit_ns,
        [](const Config& config) { return print_result(status_text(config)); });
    add("prolog", "Tell the allocator that a job starts on this node", kNodeStepLimit_ns,
        [](const Config& config) { return place(config, true); });
    add("epilog", "Tell the allocator that a job has ended on this node", kNodeStepLimit_ns,
        [](const Config& config) { return place(config, false); });
    add("task-prolog", "Print the variables of a task that Larder has placed", kLocalLimit_ns, print_task_environment);
    add("place", "Run the agent by which Larder decides what Slurm runs", 0, place_jobs);
    if (const auto described =
            larder::cli::describe_program(app, {.line = "larder-slurm", .man_section = 8}, argc, argv)) {
        return *described;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? larder::cli::kDone : larder::cli::kUsage;
    }
    if (limit_ns > 0) {
        end_after(kLocalLimit_ns,
                  "reading " + path + " takes longer than " + larder::format_duration_ns(kLocalLimit_ns));
    }
    auto config = load_config(path);
    if (!config) return print_error(config.error());
    if (limit_ns == kStepLimit_ns) {
        end_after(config->limit_ns, "no allocator has answered within " + larder::format_duration_ns(config->limit_ns) +
                                        "; submit again later, or without the line #BB_LUA larder");
    }
    return step(std::move(*config));
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        return print_error({ErrorCode::internal, error.what()});
    }
}
