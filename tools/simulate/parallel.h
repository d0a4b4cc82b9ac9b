#pragma once

// Runs many simulations at a time, each in its own process.

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder::cli {

// Runs task(0) ... task(count - 1), as many at a time as there are processors, and returns their results in order. A
// task's error (or its process's death) fails the whole call. `done` is called in this process after each task.
Result<std::vector<std::string>> run_in_processes(std::size_t count,
                                                  const std::function<Result<std::string>(std::size_t)>& task,
                                                  const std::function<void(std::size_t finished)>& done);

}  // namespace larder::cli
