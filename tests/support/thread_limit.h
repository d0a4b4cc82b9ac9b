#pragma once

// A process in which no thread can be started, for the child of a death test.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <system_error>
#include <thread>

namespace larder::test {

// Limits the process to the threads that it has. Root has no such limit.
inline void forbid_threads() {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NPROC, &limit), 0);
    limit.rlim_cur = 0;
    ASSERT_EQ(::setrlimit(RLIMIT_NPROC, &limit), 0);
    if (::geteuid() == 0) {
        ASSERT_EQ(::setresuid(65534, 65534, 65534), 0);
    }
    ASSERT_THROW(std::thread([] {}), std::system_error);
}

inline void allow_threads() {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NPROC, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ASSERT_EQ(::setrlimit(RLIMIT_NPROC, &limit), 0);
}

}  // namespace larder::test
