// larder-runner DIRECTORY: runs one attempt of a job; larder-allocator starts it.

#include <cstdio>
#include <exception>

#include "base/out_of_memory.h"
#include "base/server/accounts.h"
#include "scheduler/engines/runner.h"

// Before the initialisation of libraries, which allocates too.
[[gnu::constructor(101)]] static void set_up() {
    larder::exit_when_out_of_memory("larder-runner");
}

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fputs("larder-runner is not run by hand: larder-allocator starts one for each attempt of a job\n", stderr);
        return 2;
    }
    try {
        if (const auto loaded = larder::load_name_service(); !loaded) {
            std::fprintf(stderr, "larder-runner: %s\n", loaded.error().message.c_str());
            return 1;
        }
        return larder::scheduler::run_attempt(argv[1]);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "larder-runner: %s\n", error.what());
        return 1;
    }
}
