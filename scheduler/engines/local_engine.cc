#include "scheduler/engines/local_engine.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <utility>

#include "base/server/logging.h"
#include "scheduler/engines/control_group.h"
#include "scheduler/engines/processes.h"

namespace larder::scheduler {

namespace fs = std::filesystem;

Result<std::unique_ptr<LocalEngine>> LocalEngine::open(LocalEngineOptions options) {
    std::error_code error;
    fs::create_directories(options.directory, error);
    if (error) return fail_errno(error.value(), "make the jobs' directory " + options.directory);
    if (::access(options.runner.c_str(), X_OK) != 0) {
        return fail_errno(errno, "the program that runs jobs, " + options.runner);
    }
    return std::unique_ptr<LocalEngine>(new LocalEngine(std::move(options)));
}

AttemptFiles LocalEngine::files_of(JobId job, std::uint32_t attempt) const {
    return AttemptFiles(directory_of(job) + "/" + std::to_string(attempt), job < options_.first ? "" : options_.queue);
}

AttemptFiles LocalEngine::files_of(const AttemptName& attempt) const {
    if (attempt.queue.empty()) return files_of(attempt.job, attempt.attempt);
    return AttemptFiles(options_.directory + "/" + attempt.queue + "/" + std::to_string(attempt.job) + "/" +
                            std::to_string(attempt.attempt),
                        attempt.queue);
}

std::string LocalEngine::directory_of(JobId job) const {
    const std::string queue_prefix = job < options_.first ? "" : options_.queue + "/";
    return options_.directory + "/" + queue_prefix + std::to_string(job);
}

std::string LocalEngine::output_of(JobId job, std::uint32_t attempt) const {
    return attempt == 0 ? "" : files_of(job, attempt).output();
}

std::string LocalEngine::devices_of(const EngineJob& job) const {
    std::string list;
    for (const NamedGpus& share : job.gpus) {
        const auto first = options_.first_gpus.find(share.node);
        for (unsigned i = 0; i < kGpusPerNodeMax; ++i) {
            if ((share.gpus >> i & 1) == 0) continue;
            const unsigned device = i + (first == options_.first_gpus.end() ? 0 : first->second);
            list += (list.empty() ? "" : ",") + std::to_string(device);
        }
    }
    return list;
}

void LocalEngine::start(const EngineJob& job) {
    const AttemptFiles files = files_of(job.job, job.attempt);
    Watched& watched = watched_[job.job];
    watched = {.attempt = job.attempt};
    if (files.started()) return;
    EngineJob run = job;
    run.environment.try_emplace("PATH", "/usr/local/bin:/usr/bin:/bin");
    run.environment["CUDA_VISIBLE_DEVICES"] = devices_of(job);
    const auto written = files.write_run(run, options_.group_parent);
    const Result<pid_t> runner = written ? spawn(files) : Result<pid_t>(std::unexpected(written.error()));
    if (runner) {
        watched.runner = *runner;
    } else {
        watched.start_error = "it cannot be started: " + runner.error().message;
    }
}

Result<pid_t> LocalEngine::spawn(const AttemptFiles& files) const {
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_init(&actions);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    // In its own session, so that whatever ends the daemon's process group does not end jobs.
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    const std::string output = files.output();
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    std::string program = options_.runner;
    std::string directory = files.directory();
    std::array<char*, 3> arguments{program.data(), directory.data(), nullptr};
    pid_t runner = 0;
    const int error = ::posix_spawn(&runner, program.c_str(), &actions, &attributes, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (error != 0) return fail_errno(error, "run " + options_.runner);
    return runner;
}

void LocalEngine::adopt(const EngineJob& job) {
    // The former daemon reported its start already, or the job is to stop.
    watched_[job.job] = {.attempt = job.attempt, .start_reported = true};
}

void LocalEngine::stop(JobId job, std::uint32_t attempt) {
    const auto at = watched_.find(job);
    if (at != watched_.end() && at->second.attempt == attempt) ask_to_end(files_of(job, attempt));
}

void LocalEngine::ask_to_end(const AttemptFiles& files) {
    if (files.exit()) return;
    const auto claimed = files.claim({});
    if (!claimed) {
        return log_warn("a job cannot be stopped", {{"files", files.directory()}, {"error", claimed.error().message}});
    }
    if (*claimed) {
        // We own the attempt, so no runner will run it.
        if (auto written = files.write_exit({.was_stopping = true}); !written) {
            log_warn("could not record that a job never began", {{"error", written.error().message}});
        }
        return;
    }
    const auto starter = files.started();
    if (starter && starter->pid > 0) terminate_if(starter->pid, [&] { return files.is_locked(); });
}

void LocalEngine::stop_orphan(const AttemptName& orphan) {
    const AttemptFiles files = files_of(orphan);
    if (files.may_run()) ask_to_end(files);
}

std::vector<AttemptName> LocalEngine::list() const {
    std::vector<AttemptName> listed;
    for (AttemptName& found : attempts_with_files(options_.directory)) {
        const bool has_no_queue = found.queue.empty();
        if (found.queue == options_.queue) found.queue.clear();
        // The number of a job of this queue says where its files are. Files of that number elsewhere belong to no job.
        if (found.queue.empty() && has_no_queue != (found.job < options_.first)) continue;
        if (files_of(found).may_run()) listed.push_back(std::move(found));
    }
    return listed;
}

std::optional<EngineEvent> LocalEngine::check_attempt(JobId job, Watched& watched,
                                                      std::vector<EngineEvent>& events) const {
    const AttemptFiles files = files_of(job, watched.attempt);
    EngineEvent event{.job = job, .attempt = watched.attempt};
    // waitpid() tells reliably whether our own child has exited. Call it before reading the files, which are then
    // complete.
    const bool child_runs = watched.runner != 0 && ::waitpid(watched.runner, nullptr, WNOHANG) == 0;
    if (!child_runs) watched.runner = 0;
    const auto starter = files.started();
    // A lock file that somebody removed says nothing about its runner.
    const bool runs = files.is_locked() || (starter && starter->pid > 0 && starter->boot == boot_id() &&
                                            has_first_argument(starter->pid, files.directory()));
    if (starter && starter->pid > 0 && !std::exchange(watched.start_reported, true)) events.push_back(event);
    // A runner writes exit.json before it exits.
    if (const auto outcome = files.exit()) {
        event.kind = EngineEvent::Kind::ended;
        event.exit_code = outcome->code;
        event.exit_signal = outcome->signal;
        event.was_stopping = outcome->was_stopping;
        event.stop_came_late = outcome->stop_came_late;
        event.stopped_by = outcome->stopped_by;
        event.message = outcome->message;
        return event;
    }
    if (runs || child_runs) return std::nullopt;
    // While a process of a lost attempt is left, the attempt counts as running: no other may start beside it.
    if (!starter && !ControlGroup(files.group_of_run()).kill_all()) return std::nullopt;
    if (starter && starter->boot == boot_id()) {
        const bool group_gone = ControlGroup(starter->group).kill_all();
        const bool session_gone = kill_session_of_dead(starter->pid);
        if (!group_gone || !session_gone) return std::nullopt;
    }
    event.kind = EngineEvent::Kind::lost;
    if (const auto by = files.stopped_by()) {
        event.was_stopping = true;
        event.stopped_by = *by;
    }
    if (starter) {
        event.message = starter->pid > 0 ? "its runner is gone, and did not record how the job ended"
                                         : "it was stopped before it began";
    } else {
        event.message = !watched.start_error.empty() ? watched.start_error
                                                     : "its runner ended before it began; see " + files.output();
    }
    return event;
}

std::vector<EngineEvent> LocalEngine::poll() {
    std::vector<EngineEvent> events;
    for (auto at = watched_.begin(); at != watched_.end();) {
        auto end = check_attempt(at->first, at->second, events);
        if (!end) {
            ++at;
            continue;
        }
        events.push_back(std::move(*end));
        if (at->second.runner != 0) to_reap_.push_back(at->second.runner);
        at = watched_.erase(at);
    }
    std::erase_if(to_reap_, [](pid_t runner) { return ::waitpid(runner, nullptr, WNOHANG) != 0; });
    return events;
}

void LocalEngine::forget(JobId job) {
    std::error_code error;
    fs::remove_all(directory_of(job), error);
    if (error) log_warn("a job's directory cannot be removed", {{"job", job}, {"error", error.message()}});
}

}  // namespace larder::scheduler
