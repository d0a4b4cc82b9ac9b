#include "base/out_of_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

namespace larder {
namespace {

const char* ending_program = "";
std::terminate_handler terminate_before = nullptr;

[[noreturn]] void end_program() {
    constexpr std::string_view kMessage = ": out of memory\n";
    // Nothing here may allocate.
    const std::array parts{iovec{const_cast<char*>(ending_program), std::strlen(ending_program)},
                           iovec{const_cast<char*>(kMessage.data()), kMessage.size()}};
    static_cast<void>(!::writev(STDERR_FILENO, parts.data(), static_cast<int>(parts.size())));
    ::_exit(1);
}

// Libraries throw std::bad_alloc themselves, which calls no new handler.
[[noreturn]] void end_program_after_bad_alloc() {
    try {
        if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
        end_program();
    } catch (...) {
    }
    if (terminate_before != nullptr) terminate_before();
    std::abort();
}

}  // namespace

void exit_when_out_of_memory(const char* program) {
    ending_program = program;
    std::set_new_handler(end_program);
    terminate_before = std::set_terminate(end_program_after_bad_alloc);
}

}  // namespace larder
