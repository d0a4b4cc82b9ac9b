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
        larder::load_name_service();
        return larder::scheduler::run_attempt(argv[1]);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "larder-runner: %s\n", error.what());
        return 1;
    }
}
