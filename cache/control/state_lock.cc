#include "cache/control/state_lock.h"

#include <unistd.h>

#include <charconv>

#include "base/assert.h"
#include "base/file_lock.h"

namespace larder::cache {

Result<FileDescriptor> lock_state_directory(const std::string& directory) {
    auto file = lock_file(directory + "/larderd.lock", 0600);
    if (file || file.error().code != ErrorCode::already_exists) return file;
    return fail(ErrorCode::already_exists, "another daemon runs on " + directory + " (" + file.error().message +
                                               "): stop it, or give this one a state_directory of its own");
}

Result<std::uint64_t> load_or_create_directory_number(const std::string& directory) {
    const std::string path = directory + "/number";
    const auto text = read_file(path);
    if (!text && text.error().code != ErrorCode::not_found) return std::unexpected(text.error());
    std::uint64_t number = 0;
    if (text) std::from_chars(text->data(), text->data() + text->size(), number);
    if (number != 0) return number;
    number = draw_number();
    if (auto written = replace_file(path, std::to_string(number) + "\n"); !written)
        return std::unexpected(written.error());
    return number;
}

std::uint64_t draw_number() {
    std::uint64_t number = 0;
    LARDER_ASSERT(::getentropy(&number, sizeof number) == 0);
    return (number >> 11) | 1;
}

}  // namespace larder::cache
