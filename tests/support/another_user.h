#pragma once

// Gives the process the rights of user nobody in all threads while the object lives, for tests of refused access: root
// may read everything. Does nothing if the process does not run as root.

#include <gtest/gtest.h>
#include <unistd.h>

namespace larder::test {

class AnotherUser {
public:
    AnotherUser() : is_root_(::geteuid() == 0) {
        if (is_root_) {
            EXPECT_EQ(::seteuid(kNobody), 0);
        }
    }
    ~AnotherUser() {
        if (is_root_) {
            EXPECT_EQ(::seteuid(0), 0);
        }
    }
    AnotherUser(const AnotherUser&) = delete;
    AnotherUser& operator=(const AnotherUser&) = delete;

private:
    static constexpr uid_t kNobody = 65534;
    bool is_root_;
};

}  // namespace larder::test
