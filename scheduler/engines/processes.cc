#include "scheduler/engines/processes.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <string>

#include "base/file.h"

namespace larder::scheduler {
namespace {

namespace fs = std::filesystem;

// Returns the sixth field of /proc/PID/stat. The second field, the name in brackets, may contain any character.
pid_t session_of(const std::string& stat) {
    const std::size_t bracket = stat.rfind(')');
    if (bracket == std::string::npos) return 0;
    std::istringstream fields(stat.substr(bracket + 1));
    std::string state;
    pid_t parent = 0;
    pid_t group = 0;
    pid_t session = 0;
    fields >> state >> parent >> group >> session;
    return session;
}

}  // namespace

void kill_session_of_dead(pid_t leader) {
    if (leader <= 1 || ::kill(leader, 0) == 0 || errno != ESRCH) return;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc", error)) {
        const std::string number = entry.path().filename();
        pid_t pid = 0;
        const auto [end, wrong] = std::from_chars(number.data(), number.data() + number.size(), pid);
        if (wrong != std::errc{} || end != number.data() + number.size()) continue;
        const auto stat = read_file(entry.path().string() + "/stat");
        if (stat && session_of(*stat) == leader) ::kill(pid, SIGKILL);
    }
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

void terminate_if(pid_t pid, const std::function<bool()>& is_expected) {
    // Not by <sys/pidfd.h>: in glibc 2.36 it declares its functions without C linkage.
    const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (process && is_expected()) ::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0);
}

}  // namespace larder::scheduler
