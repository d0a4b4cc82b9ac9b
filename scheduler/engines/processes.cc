#include "scheduler/engines/processes.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>

#include "base/file.h"

namespace larder::scheduler {
namespace {

namespace fs = std::filesystem;

struct ProcessStat {
    std::string name;
    char state = 0;  // 'Z': a zombie
    pid_t parent = 0;
    pid_t session = 0;
};

// Returns nullopt if there is no such process.
std::optional<ProcessStat> stat_of(pid_t pid) {
    const auto text = read_file("/proc/" + std::to_string(pid) + "/stat");
    if (!text) return std::nullopt;
    // The second field, the name in brackets, may contain any character.
    const std::size_t open = text->find('(');
    const std::size_t close = text->rfind(')');
    if (open == std::string::npos || close == std::string::npos) return std::nullopt;
    ProcessStat stat{.name = text->substr(open + 1, close - open - 1)};
    std::istringstream fields(text->substr(close + 1));
    pid_t group = 0;
    fields >> stat.state >> stat.parent >> group >> stat.session;
    return stat;
}

}  // namespace

bool kill_session_of_dead(pid_t leader) {
    if (leader <= 1 || ::kill(leader, 0) == 0 || errno != ESRCH) return true;
    bool all_gone = true;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc", error)) {
        const std::string number = entry.path().filename();
        pid_t pid = 0;
        const auto [end, wrong] = std::from_chars(number.data(), number.data() + number.size(), pid);
        if (wrong != std::errc{} || end != number.data() + number.size()) continue;
        const auto stat = stat_of(pid);
        if (!stat || stat->session != leader || stat->state == 'Z') continue;
        ::kill(pid, SIGKILL);
        all_gone = false;
    }
    return all_gone;
}

void kill_all_children() {
    const std::string list = "/proc/self/task/" + std::to_string(::gettid()) + "/children";
    for (;;) {
        std::istringstream children(read_file(list).value_or(""));
        for (pid_t child = 0; children >> child;) ::kill(child, SIGKILL);
        // Grandchildren become children once their parents are gone.
        if (::waitpid(-1, nullptr, 0) < 0 && errno != EINTR) return;
    }
}

bool descends_from(pid_t process, pid_t ancestor) {
    while (process > 1) {
        const auto stat = stat_of(process);
        if (!stat) return false;
        if (stat->parent == ancestor) return true;
        process = stat->parent;
    }
    return false;
}

bool has_first_argument(pid_t pid, std::string_view argument) {
    const auto line = read_file("/proc/" + std::to_string(pid) + "/cmdline");
    if (!line) return false;
    // Each argument ends with a NUL.
    const std::size_t begin = line->find('\0') + 1;
    return begin != 0 && std::string_view(*line).substr(begin, line->find('\0', begin) - begin) == argument;
}

std::string describe_process(pid_t pid) {
    if (pid <= 0) return "a process of another namespace";
    const auto stat = stat_of(pid);
    return "process " + std::to_string(pid) + (stat ? " (" + stat->name + ")" : "");
}

void terminate_if(pid_t pid, const std::function<bool()>& is_expected) {
    // Not by <sys/pidfd.h>: in glibc 2.36 it declares its functions without C linkage.
    const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (process && is_expected()) ::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0);
}

}  // namespace larder::scheduler
