// The arguments of `larder whatif`: jobs to add, and changes of size.

#include "tools/cli/added_job.h"

#include <boost/json/serialize.hpp>
#include <gtest/gtest.h>

namespace larder::cli {
namespace {

std::string parsed(const std::string& text) {
    const auto job = parse_added_job(text);
    return job ? boost::json::serialize(*job) : "error: " + job.error().message;
}

TEST(AddedJob, IsNameFollowedByKnownProperties) {
    EXPECT_EQ(parsed("big,dataset=images"), R"({"name":"big","dataset":"images"})");
    EXPECT_EQ(parsed("big,dataset=d,size=2TB,ideal=800Mbit,gpus=8,nodes=a+b,weight=0.5,epochs=10,floor=1MB/s,cap=0"),
              R"({"name":"big","dataset":"d","dataset_size_bytes":2000000000000,"ideal_bytes_per_second":1E8,"gpus":8,)"
              R"("nodes":["a","b"],"weight":5E-1,"epochs":1E1,"bandwidth_floor_bytes_per_second":1E6,)"
              R"("bandwidth_cap_bytes_per_second":0E0})");
}

TEST(AddedJob, ErrorNamesWrongPart) {
    EXPECT_EQ(parsed("big"), "error: \"big\": dataset=NAME is missing");
    EXPECT_EQ(parsed("").substr(0, 40), "error: \"\": a job begins with its name: N");
    EXPECT_EQ(parsed("dataset=d").substr(0, 31), "error: \"dataset=d\": a job begin");
    EXPECT_EQ(parsed("big,dataset=d,colour=red"),
              "error: \"colour=red\": unknown; known: dataset, size, ideal, gpus, nodes, weight, epochs, floor, cap");
    EXPECT_EQ(parsed("big,dataset=d,size=2").substr(0, 37), "error: \"size=2\": \"2\" is not a size: e");
    EXPECT_EQ(parsed("big,dataset=d,gpus=-1"), "error: \"gpus=-1\": \"-1\" is not a number");
    EXPECT_EQ(parsed("big,dataset=d,gpus="), "error: \"gpus=\": \"\" is not a number");
}

TEST(SignedBytes, ParsesPlusAndMinus) {
    EXPECT_EQ(parse_signed_bytes("+2TiB").value(), std::int64_t{1} << 41);
    EXPECT_FALSE(parse_signed_bytes("2TiB").has_value()) << "could be read as the new size";
    EXPECT_EQ(parse_signed_bytes("-500GB").value(), -500'000'000'000);
    EXPECT_FALSE(parse_signed_bytes("--1GB").has_value());
    EXPECT_FALSE(parse_signed_bytes("-").has_value());
    EXPECT_FALSE(parse_signed_bytes("+9223373TB").has_value()) << "above what the API takes";
}

}  // namespace
}  // namespace larder::cli
