#pragma once

#include <string>

namespace larder::bench {

// Returns the Python interpreter of the tests' environment, which has the larder package; without one, the system's.
std::string tests_interpreter();

}  // namespace larder::bench
