#include "base/out_of_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <new>
#include <string_view>

namespace larder {
namespace {

const char* ending_program = "";

[[noreturn]] void end_program() {
    constexpr std::string_view kMessage = ": out of memory\n";
    // Nothing here may allocate.
    const std::array parts{iovec{const_cast<char*>(ending_program), std::strlen(ending_program)},
                           iovec{const_cast<char*>(kMessage.data()), kMessage.size()}};
    static_cast<void>(!::writev(STDERR_FILENO, parts.data(), static_cast<int>(parts.size())));
    ::_exit(1);
}

}  // namespace

void exit_when_out_of_memory(const char* program) {
    ending_program = program;
    std::set_new_handler(end_program);
}

}  // namespace larder
