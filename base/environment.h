#pragma once

// What the process was started with. Any thread, as long as none sets variables.

#include <cstdlib>
#include <string>

namespace larder {

// A variable's value; empty when it is not set.
inline std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

}  // namespace larder
