#include "base/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace larder {
namespace {

const std::vector<std::string> kKnown{"remote_bandwidth", "log.level", "list", "remove", "dataset"};

TEST(NearestName, NameWithFewChangedLettersMatches) {
    EXPECT_EQ(nearest_name("lits", kKnown), "list");
    EXPECT_EQ(nearest_name("datasets", kKnown), "dataset");
    EXPECT_EQ(nearest_name("log.levl", kKnown), "log.level");
}

TEST(NearestName, PartOfANameMatches) {
    EXPECT_EQ(nearest_name("bandwith", kKnown), "remote_bandwidth");
    EXPECT_EQ(nearest_name("level", kKnown), "log.level");
}

TEST(NearestName, SwappedNeighboursCountAsOneChange) {
    const std::vector<std::string> policies{"fifo", "sjf", "srtf", "edf"};
    EXPECT_EQ(nearest_name("srft", policies), "srtf");
    EXPECT_EQ(nearest_name("ffio", policies), "fifo");
}

TEST(NearestName, BeginningOfOneNameMatches) {
    const std::vector<std::string> commands{"workload", "compare", "capacity", "guarantee", "complete"};
    EXPECT_EQ(nearest_name("guar", commands), "guarantee");
    EXPECT_EQ(nearest_name("compa", commands), "compare");
    EXPECT_FALSE(nearest_name("comp", commands)) << "two names begin so";
    EXPECT_FALSE(nearest_name("gu", commands)) << "two letters say too little";
}

TEST(NearestName, NameThatContinuesAKnownOneMatches) {
    const std::vector<std::string> allocator{"state", "socket", "log.file"};
    const std::vector<std::string> daemon{"state_directory", "socket", "socket_mode"};
    EXPECT_EQ(nearest_name("state_directory", allocator), "state");
    EXPECT_EQ(nearest_name("state", daemon), "state_directory");
    EXPECT_EQ(nearest_name("socket_mode_bits", daemon), "socket_mode");
    EXPECT_FALSE(nearest_name("statement", allocator)) << "another word";
}

TEST(NearestName, DistantNameMatchesNothing) {
    EXPECT_FALSE(nearest_name("nonsense", kKnown));
    EXPECT_FALSE(nearest_name("xyz", kKnown));
    EXPECT_FALSE(nearest_name("list", {}));
}

}  // namespace
}  // namespace larder
