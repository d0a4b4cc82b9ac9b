#include "tools/cli/data_file.h"

#include <filesystem>
#include <system_error>

namespace larder::cli {

std::string data_file(std::string_view path) {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    const fs::path installed = program.parent_path().parent_path() / "share/larder" / path;
    if (!error && fs::exists(installed, error)) return installed.string();
    return (fs::path(LARDER_SOURCE_DIRECTORY) / path).string();
}

}  // namespace larder::cli
