// larder-runner DIRECTORY: runs one attempt of a job; larder-allocator starts it.

#include <cstdio>
#include <exception>

#include "scheduler/engines/runner.h"

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fputs("larder-runner is not run by hand: larder-allocator starts one for each attempt of a job\n", stderr);
        return 2;
    }
    try {
        return larder::scheduler::run_attempt(argv[1]);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "larder-runner: %s\n", error.what());
        return 1;
    }
}
