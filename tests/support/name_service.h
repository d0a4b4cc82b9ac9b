#pragma once

// Users that a name service adds to those of the machine, for tests. The service can hang. Include this in one file of
// a test program: it replaces getpwnam_r there.

#include <dlfcn.h>
#include <pwd.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

namespace larder::test {

inline constexpr const char* kServedUser = "served-by-the-test";

// The user's number; 0: unknown.
inline std::atomic<uid_t> served_uid = 0;
inline std::atomic<bool> service_hangs = false;
inline std::atomic<int> look_ups_hanging = 0;

}  // namespace larder::test

extern "C" int getpwnam_r(const char* name, passwd* entry, char* buffer, std::size_t bytes, passwd** found) {
    namespace test = larder::test;
    if (std::string_view(name) != test::kServedUser) {
        using LookUp = int (*)(const char*, passwd*, char*, std::size_t, passwd**);
        static const auto of_machine = reinterpret_cast<LookUp>(::dlsym(RTLD_NEXT, "getpwnam_r"));
        return of_machine(name, entry, buffer, bytes, found);
    }
    ++test::look_ups_hanging;
    while (test::service_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --test::look_ups_hanging;
    *entry = {};
    entry->pw_uid = test::served_uid;
    *found = test::served_uid == 0 ? nullptr : entry;
    return 0;
}
