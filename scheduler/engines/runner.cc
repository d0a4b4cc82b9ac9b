#include "scheduler/engines/runner.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "scheduler/engines/attempt_files.h"
#include "scheduler/engines/control_group.h"
#include "scheduler/engines/processes.h"

namespace larder::scheduler {
namespace {

constexpr int kCannotRun = 127;  // as in shells
// Whoever stops all processes of a service or machine signals one after the other. So the runner's own SIGTERM may come
// this long after the command has died of another.
constexpr int kLateStop_ms = 100;
constexpr int kKillAgain_ms = 5;

// The reason why the command does not run. The child sends it through a pipe.
struct Failure {
    std::array<char, 32> what{};
    int errno_value = 0;
};

[[noreturn]] void give_up(int pipe, const char* what) {
    Failure failure{.errno_value = errno};
    std::strncpy(failure.what.data(), what, failure.what.size() - 1);
    static_cast<void>(!::write(pipe, &failure, sizeof failure));
    ::_exit(kCannotRun);
}

std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> list;
    list.reserve(words.size() + 1);
    for (std::string& word : words) list.push_back(word.data());
    list.push_back(nullptr);
    return list;
}

bool become(const RunAs& user) {
    if (::geteuid() != 0) return ::geteuid() == user.uid;
    const passwd* entry = ::getpwuid(user.uid);
    const bool groups = entry == nullptr ? ::setgroups(0, nullptr) == 0 : ::initgroups(entry->pw_name, user.gid) == 0;
    return groups && ::setgid(user.gid) == 0 && ::setuid(user.uid) == 0;
}

// Has the kernel kill this process when the runner dies. A change of user resets this, so call it again after one.
void die_with_runner(int pipe, pid_t runner) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != runner) give_up(pipe, "follow its runner");
}

[[noreturn]] void exec_command(EngineJob& job, const ControlGroup& group, int output, int pipe, pid_t runner,
                               const sigset_t& former_mask) {
    ::setpgid(0, 0);
    die_with_runner(pipe, runner);
    if (::dup2(output, STDOUT_FILENO) < 0 || ::dup2(output, STDERR_FILENO) < 0) give_up(pipe, "write its output");
    if (!group.directory().empty()) {
        if (const auto entered = group.enter(); !entered) {
            std::fprintf(stderr, "larder-runner: the job runs without a control group: %s\n",
                         entered.error().message.c_str());
        }
    }
    if (job.user && !become(*job.user)) give_up(pipe, "become its user");
    die_with_runner(pipe, runner);
    if (::chdir(job.directory.c_str()) != 0) give_up(pipe, "enter its directory");
    std::vector<std::string> variables;
    variables.reserve(job.environment.size());
    for (const auto& [key, value] : job.environment) variables.push_back(key + "=" + value);
    const auto environment = pointers(variables);
    const auto command = pointers(job.command);
    // execvpe() searches the PATH of this process, so set it to the job's.
    const auto path = job.environment.find("PATH");
    ::setenv("PATH", path == job.environment.end() ? "/usr/bin:/bin" : path->second.c_str(), 1);
    ::sigprocmask(SIG_SETMASK, &former_mask, nullptr);
    ::execvpe(command[0], command.data(), environment.data());
    give_up(pipe, "run it");
}

class Attempt {
public:
    Attempt(const AttemptFiles& files, EngineJob job, ControlGroup group)
        : files_(files), job_(std::move(job)), group_(std::move(group)) {}

    AttemptExit run() {
        // From here on no SIGTERM is lost.
        sigset_t awaited_signals;
        sigemptyset(&awaited_signals);
        for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&awaited_signals, signal);
        sigset_t former_mask;
        ::sigprocmask(SIG_BLOCK, &awaited_signals, &former_mask);
        const FileDescriptor signals(::signalfd(-1, &awaited_signals, SFD_CLOEXEC | SFD_NONBLOCK));
        const auto claimed = files_.claim({.pid = ::getpid(), .boot = boot_id(), .group = group_.directory()});
        if (!claimed || !*claimed) {
            is_mine_ = false;
            return {};
        }
        if (!signals) return cannot("watch it", errno);
        if (auto failure = start(former_mask)) return *failure;
        return watch(signals.get());
    }
    bool is_mine() const { return is_mine_; }

private:
    static AttemptExit cannot(const std::string& what, int why) {
        return {.code = kCannotRun, .message = "cannot " + what + ": " + std::strerror(why)};
    }

    std::optional<AttemptExit> start(const sigset_t& former_mask) {
        // Only the job's user, and those whom the allocator lets read it, may read what a job writes.
        const auto output = open_file(files_.output(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (!output) return AttemptExit{.code = kCannotRun, .message = output.error().message};
        if (job_.user && ::geteuid() == 0 && ::fchown(output->get(), job_.user->uid, job_.user->gid) != 0) {
            return cannot("give its output to its user", errno);
        }
        std::array<int, 2> ends{};
        if (::pipe2(ends.data(), O_CLOEXEC) != 0) return cannot("make a pipe", errno);
        const FileDescriptor reading(ends[0]);
        FileDescriptor writing(ends[1]);
        const pid_t runner = ::getpid();
        ::prctl(PR_SET_CHILD_SUBREAPER, 1);
        child_ = ::fork();
        if (child_ < 0) return cannot("fork", errno);
        if (child_ == 0) exec_command(job_, group_, output->get(), writing.get(), runner, former_mask);
        ::setpgid(child_, child_);
        writing.reset();
        Failure failure;
        if (::read(reading.get(), &failure, sizeof failure) != static_cast<ssize_t>(sizeof failure)) {
            return std::nullopt;
        }
        ::waitpid(child_, nullptr, 0);
        kill_rest();
        return cannot(std::string(failure.what.data()) + " (" + job_.command.front() + ")", failure.errno_value);
    }

    // Returns true once the command has ended, after killing everything it started.
    bool reap(AttemptExit& outcome) const {
        int status = 0;
        for (pid_t gone = 0; (gone = ::waitpid(-1, &status, WNOHANG)) > 0;) {
            if (gone != child_) continue;
            if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
            if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
            kill_rest();
            return true;
        }
        return false;
    }

    void kill_rest() const {
        ::kill(-child_, SIGKILL);
        while (!group_.kill_all()) ::poll(nullptr, 0, kKillAgain_ms);
        kill_all_children();
    }

    bool has_ended() const {
        siginfo_t ended{};
        return ::waitid(P_PID, static_cast<id_t>(child_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
               ended.si_pid == child_;
    }

    // Reads signals until one tells this runner to stop. Returns who sent it; nullopt: there is none.
    std::optional<std::string> read_stop(int signals) const {
        signalfd_siginfo signal{};
        while (::read(signals, &signal, sizeof signal) == static_cast<ssize_t>(sizeof signal)) {
            const auto sender = static_cast<pid_t>(signal.ssi_pid);
            const bool is_jobs_own = sender == child_ || descends_from(sender, ::getpid());
            if (signal.ssi_signo != SIGCHLD && !is_jobs_own) return describe_process(sender);
        }
        return std::nullopt;
    }

    static void note_late_stop(AttemptExit& outcome, const std::optional<std::string>& by) {
        if (!by || outcome.was_stopping) return;
        outcome.stop_came_late = true;
        outcome.stopped_by = *by;
    }

    AttemptExit watch(int signals) const {
        const SteadyClock clock;
        AttemptExit outcome;
        std::int64_t kill_at_ns = 0;
        while (!reap(outcome)) {
            int timeout_ms = -1;
            if (kill_at_ns != 0) {
                const std::int64_t left_ns = kill_at_ns - clock.now_ns();
                if (left_ns <= 0) {
                    ::kill(-child_, SIGKILL);
                    ::kill(child_, SIGKILL);
                }
                timeout_ms = left_ns <= 0 ? -1 : static_cast<int>(left_ns / 1'000'000 + 1);
            }
            pollfd waits{.fd = signals, .events = POLLIN, .revents = 0};
            ::poll(&waits, 1, timeout_ms);
            const auto by = read_stop(signals);
            if (!by || outcome.was_stopping) continue;
            if (has_ended()) {
                note_late_stop(outcome, by);
                continue;
            }
            outcome.was_stopping = true;
            outcome.stopped_by = *by;
            // Without this record, a stop whose runner is killed later would be taken for a crash.
            if (auto written = files_.write_stop(*by); !written) {
                std::fprintf(stderr, "larder-runner: %s\n", written.error().message.c_str());
            }
            kill_at_ns = clock.now_ns() + static_cast<std::int64_t>(job_.grace_s * 1e9) + 1;
            ::kill(-child_, SIGTERM);
        }
        note_late_stop(outcome, read_stop(signals));
        if (!outcome.was_stopping && !outcome.stop_came_late) {
            pollfd waits{.fd = signals, .events = POLLIN, .revents = 0};
            ::poll(&waits, 1, kLateStop_ms);
            note_late_stop(outcome, read_stop(signals));
        }
        return outcome;
    }

    const AttemptFiles& files_;
    EngineJob job_;
    ControlGroup group_;
    pid_t child_ = -1;
    bool is_mine_ = true;
};

}  // namespace

int run_attempt(const std::string& directory) {
    const AttemptFiles files_without_queue(directory);
    const auto complain = [](const Error& error) {
        std::fprintf(stderr, "larder-runner: %s\n", error.message.c_str());
        return 1;
    };
    const auto lock = files_without_queue.lock();
    if (!lock) return lock.error().code == ErrorCode::already_exists ? 0 : complain(lock.error());
    auto job = files_without_queue.read_run();
    if (!job) return complain(job.error());
    const AttemptFiles files(directory, files_without_queue.queue_of_run());
    Attempt attempt(files, std::move(*job), ControlGroup(files_without_queue.group_of_run()));
    const AttemptExit outcome = attempt.run();
    if (!attempt.is_mine()) return 0;
    const auto written = files.write_exit(outcome);
    return written ? 0 : complain(written.error());
}

}  // namespace larder::scheduler
