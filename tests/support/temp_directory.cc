#include "tests/support/temp_directory.h"

#include <stdlib.h>

#include <system_error>

namespace larder::test {

TempDirectory::TempDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "larder-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
    path_ = name;
}

TempDirectory::~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

}  // namespace larder::test
