#pragma once

// Where the benches' Python scripts lie: in the source tree this program was built from.

#include <string>

namespace larder::bench {

inline std::string script_path(const std::string& name) {
    return LARDER_BENCH_DIRECTORY "/" + name;
}

}  // namespace larder::bench
