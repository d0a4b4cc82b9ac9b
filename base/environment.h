#pragma once

// The environment variables the process was started with. Any thread, as long as no thread sets variables.

#include <cstdlib>
#include <string>

namespace larder {

// Returns the value of a variable, or an empty string when it is not set.
inline std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

}  // namespace larder
