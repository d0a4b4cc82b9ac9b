#include "scheduler/engines/slurm/job_request.h"

#include <gtest/gtest.h>

#include "scheduler/engines/slurm/followed_jobs.h"

namespace larder::scheduler::slurm {
namespace {

std::string error_of(std::string_view script) {
    const auto request = parse_job_request(script);
    return request ? "" : request.error().message;
}

TEST(JobRequest, AllWordsAreRead) {
    const auto request = parse_job_request(
        "#!/bin/bash\n#SBATCH -n1\n\n#BB_LUA larder\tdataset=imagenet  cache=200GiB bandwidth=500MB/s gpus=8 "
        "pool=larder capacity=9\ntrain\n");
    ASSERT_TRUE(request && *request);
    EXPECT_EQ((*request)->dataset, "imagenet");
    EXPECT_EQ((*request)->cache_bytes, std::uint64_t{200} << 30);
    EXPECT_EQ((*request)->bandwidth_bytes_per_second, 5e8);
    EXPECT_EQ((*request)->gpus, 8u);
}

TEST(JobRequest, OnlyTheHeadOfTheScriptCounts) {
    for (const char* script :
         {"", "#!/bin/sh\n", "#!/bin/sh\ntrain\n#BB_LUA larder dataset=a\n", "#BB_LUAX larder\n"}) {
        const auto request = parse_job_request(script);
        ASSERT_TRUE(request) << script;
        EXPECT_FALSE(*request) << script;
    }
    const auto last_line = parse_job_request("#BB_LUA larder dataset=a");
    EXPECT_TRUE(last_line && *last_line) << "without a line end";
}

TEST(JobRequest, ErrorsNameTheWord) {
    EXPECT_EQ(error_of("#BB_LUA larder dataset=a gpus=0"), "\"gpus=0\": expected a whole number above 0");
    EXPECT_EQ(error_of("#BB_LUA larder dataset=a gpus=1x"), "\"gpus=1x\": expected a whole number above 0");
    EXPECT_EQ(error_of("#BB_LUA larder dataset="), "\"dataset=\": the name is empty");
    EXPECT_EQ(error_of("#BB_LUA larder dataset=a dataset=b"), "\"dataset=b\": was given before");
    EXPECT_EQ(error_of("#BB_LUA larder dataset=a cache=0"), "\"cache=0\": must be above 0");
    EXPECT_TRUE(error_of("#BB_LUA larder dataset=a cache=5parsecs").starts_with("\"cache=5parsecs\": "));
    EXPECT_TRUE(error_of("#BB_LUA larder dataset=a bandwidth=fast").starts_with("\"bandwidth=fast\": "));
    EXPECT_TRUE(
        error_of("#BB_LUA larder dataset=a colour=red").starts_with("\"colour=red\": unknown; expected #BB_LUA"));
    EXPECT_TRUE(error_of("#BB_LUA larder imagenet").starts_with("\"imagenet\": expected #BB_LUA larder dataset=NAME"));
    EXPECT_TRUE(error_of("#BB_LUA datawarp dataset=a").starts_with("\"datawarp\": expected #BB_LUA larder"));
    EXPECT_TRUE(error_of("#BB_LUA larder cache=1GB").starts_with("dataset=NAME is missing"));
    EXPECT_EQ(error_of("#BB_LUA larder dataset=a\n#BB_LUA larder dataset=b"),
              "more than one line begins with #BB_LUA larder");
}

TEST(JobRequest, GpusAreCountedInSlurmsLists) {
    EXPECT_EQ(count_gpus(""), 0u);
    EXPECT_EQ(count_gpus("0"), 1u);
    EXPECT_EQ(count_gpus("0,2"), 2u);
    EXPECT_EQ(count_gpus("0-3,6"), 5u);
    for (const char* wrong : {"a", "3-1", "0,", "0-", ",1", "1;2", "0-99999999999"}) {
        EXPECT_EQ(count_gpus(wrong), std::nullopt) << wrong;
    }
}

TEST(UnendedJobs, JobsInEndedStatesAreLeftOut) {
    EXPECT_EQ(unended_jobs("7 RUNNING\n8 COMPLETED\n9 PENDING\n10 CANCELLED\n11 COMPLETING\n12 NODE_FAIL\n"),
              (std::set<std::string>{"11", "7", "9"}));
    EXPECT_TRUE(unended_jobs("").empty());
}

TEST(LicenceCount, BandwidthIsRoundedUpToWholeLicences) {
    EXPECT_EQ(licence_count({.dataset = "images"}), 0u);
    EXPECT_EQ(licence_count({.bandwidth_bytes_per_second = 1}), 1u);
    EXPECT_EQ(licence_count({.bandwidth_bytes_per_second = 1e6}), 1u);
    EXPECT_EQ(licence_count({.bandwidth_bytes_per_second = 1e6 + 1}), 2u);
    EXPECT_EQ(licence_count({.bandwidth_bytes_per_second = 500e6}), 500u);
    EXPECT_EQ(licence_count({.bandwidth_bytes_per_second = 1e17}), 4'294'967'295u) << "Slurm counts 32 bits";
}

TEST(ScheduledNodes, NodesOfTheJobItselfAreFound) {
    EXPECT_EQ(scheduled_nodes("7 n[1-2,5]\n", "7"), "n[1-2,5]");
    EXPECT_EQ(scheduled_nodes("8 n1\n7 n2\n", "7"), "n2") << "another task of its array comes first";
    EXPECT_EQ(scheduled_nodes("7 (null)\n", "7"), "") << "backfill has not looked yet, or nodes are idle";
    EXPECT_EQ(scheduled_nodes("7\n", "7"), "");
    EXPECT_EQ(scheduled_nodes("", "7"), "");
}

}  // namespace
}  // namespace larder::scheduler::slurm
