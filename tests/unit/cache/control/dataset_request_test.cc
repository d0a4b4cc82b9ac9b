#include "cache/control/dataset_request.h"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace larder::cache {
namespace {

using testing::HasSubstr;

Result<DatasetRecord> record_of(const std::string& body) {
    const auto request = read_dataset_request(boost::json::parse(body).as_object());
    if (!request) return std::unexpected(request.error());
    return check_dataset_request(*request, {.owner = 7, .group = 8});
}

TEST(DatasetRequest, SilentRequestGetsTheDefaults) {
    const auto record = record_of(R"({"name": "a", "url": "/data"})");
    ASSERT_TRUE(record) << record.error().message;
    EXPECT_EQ(record->definition.url, "file:///data");
    EXPECT_FALSE(record->definition.format) << "indexing detects it";
    EXPECT_EQ(record->definition.block.target, protocol::BlockTarget::sample);
    EXPECT_EQ(record->definition.compression, Compression{});
    EXPECT_EQ(record->definition.tokens_per_sample, 0u);
    EXPECT_EQ(record->access.owner, 7u);
    EXPECT_EQ(record->access.group, 8u);
    EXPECT_EQ(record->access.mode, 0640u);
    EXPECT_EQ(record->quota, Quota{});
    EXPECT_FALSE(record->quota_held);
}

TEST(DatasetRequest, EveryKeyReachesTheRecord) {
    const auto record = record_of(R"({"name": "a", "url": "s3://b/c", "format": "megatron", "block": "8 MiB",
        "compression": "zstd:5", "checksum": true, "tokens_per_sample": 2049, "owner": "1", "group": "2",
        "mode": "0604", "quota": {"memory_bytes": 3, "disk_bytes": 4}, "remote": {"region": "eu-1"}})");
    ASSERT_TRUE(record) << record.error().message;
    EXPECT_EQ(record->definition.format, protocol::Format::megatron);
    EXPECT_EQ(record->definition.block.bytes, 8u << 20);
    EXPECT_EQ(record->definition.compression, (Compression{CompressionKind::zstd, 5}));
    EXPECT_TRUE(record->definition.checksum);
    EXPECT_EQ(record->definition.tokens_per_sample, 2049u);
    EXPECT_EQ(record->definition.remote.region, "eu-1");
    EXPECT_EQ(record->access.owner, 1u);
    EXPECT_EQ(record->access.group, 2u);
    EXPECT_EQ(record->access.mode, 0604u);
    EXPECT_EQ(record->quota, (Quota{.memory_bytes = 3, .disk_bytes = 4}));
    EXPECT_TRUE(record->quota_held);
}

TEST(DatasetRequest, BadValueErrorNamesTheKey) {
    for (const auto& [key, error] : {std::pair{R"("name": ".a")", "name: "},
                                     {R"("url": "ftp://x")", "url: "},
                                     {R"("format": "zip")", "format: format \"zip\" is unknown"},
                                     {R"("block": "0")", "block: block \"0\" is not sample, object or a size"},
                                     {R"("block": "1 TiB")", "block: block \"1 TiB\" is larger than"},
                                     {R"("compression": "lz4")", "compression: "},
                                     {R"("tokens_per_sample": 0)", "tokens_per_sample: 0 is not from 1 to 67108864"},
                                     {R"("owner": "no such user")", "owner: "},
                                     {R"("colour": "red")", "colour"}}) {
        boost::json::object body{{"name", "a"}, {"url", "/data"}};
        const boost::json::value changed = boost::json::parse("{" + std::string(key) + "}");
        for (const auto& [name, value] : changed.as_object()) body[name] = value;
        const auto record = record_of(boost::json::serialize(body));
        ASSERT_FALSE(record) << key;
        EXPECT_THAT(record.error().message, HasSubstr(error));
    }
}

TEST(DatasetRequest, BlockLargerThanAnyBlockIsRefused) {
    const DatasetRequest request{
        .definition = {.name = "a", .url = "/data", .block = {protocol::BlockTarget::bytes, std::uint64_t{1} << 40}}};
    const auto record = check_dataset_request(request, {});
    ASSERT_FALSE(record);
    EXPECT_THAT(record.error().message, HasSubstr("block: block \"1048576 MiB\" is larger than the largest allowed"));
}

}  // namespace
}  // namespace larder::cache
