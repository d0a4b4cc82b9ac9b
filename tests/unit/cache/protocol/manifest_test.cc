// Manifest: the accessors return what was written. No damage to the file gets past open and check or makes an accessor
// read outside the mapping.

#include "cache/protocol/manifest.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <numeric>

#include "base/hash.h"
#include "cache/dataset/manifest_writer.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::protocol {
namespace {

using cache::DatasetContent;
using ::testing::HasSubstr;

// Two shards: a.tar with blocks of 2 and 1 samples, b.tar with one block of 2.
DatasetContent two_shards() {
    DatasetContent content;
    content.add_object("b.tar", 5000, 20, kNoLabel);
    content.add_object("a.tar", 9000, 10, kNoLabel);
    content.objects[0].first_block = 0;
    content.objects[0].block_count = 1;
    content.objects[1].first_block = 1;
    content.objects[1].block_count = 2;
    content.blocks = {{512, 3000, 0, 2}, {0, 4000, 2, 2}, {4000, 1000, 4, 1}};
    content.samples = {{0, 1000}, {1000, 2000}, {0, 1500}, {2000, 2000}, {0, 1000}};
    return content;
}

DatasetContent four_files() {
    DatasetContent content;
    content.classes = {"cats", "dogs"};
    content.add_object("dogs/1.jpg", 300, 3, 1);
    content.add_object("cats/2.jpg", 200, 2, 0);
    content.add_object("top.jpg", 400, 4, kNoLabel);
    content.add_object("cats/1.jpg", 100, 1, 0);
    return content;
}

class ManifestTest : public ::testing::Test {
protected:
    std::string write(DatasetContent content, Format format) {
        const cache::ManifestVersion version{
            .path = directory_ / "manifest", .dataset_id = 77, .version = 3, .created_unix_ns = 123};
        const auto summary = write_manifest(content, {.url = "file:///data", .format = format}, version);
        EXPECT_TRUE(summary) << summary.error().message;
        return version.path;
    }

    // Opens a manifest file that consists of `bytes`.
    Result<Manifest> open_bytes(std::string_view bytes) {
        const FileDescriptor file(::memfd_create("damaged", MFD_CLOEXEC));
        EXPECT_EQ(::write(file.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
        return Manifest::open(file.get());
    }

    test::TempDirectory directory_;
};

// Calls every accessor on every index; ASan or the kernel objects to a read outside the mapping.
std::uint64_t touch_everything(const Manifest& manifest) {
    std::uint64_t sum = manifest.url().size();
    const auto add_text = [&](std::string_view text) { sum = std::accumulate(text.begin(), text.end(), sum); };
    for (std::uint64_t i = 0; i < manifest.object_count(); ++i) {
        add_text(manifest.object(i).path);
        sum += manifest.find_object(manifest.object(i).path).value_or(0);
    }
    for (std::uint32_t i = 0; i < manifest.block_count(); ++i) {
        EXPECT_LE(manifest.block(i).length, manifest.header().block_bytes_max);
        sum += manifest.block(i).length + manifest.block_id(i);
    }
    for (std::uint64_t i = 0; i < manifest.sample_count(); ++i) {
        EXPECT_LT(manifest.block_of_sample(i), manifest.block_count());
        sum += manifest.sample(i).length;
    }
    for (std::uint64_t i = 0; i < manifest.header().class_count; ++i) add_text(manifest.class_name(i));
    return sum;
}

TEST_F(ManifestTest, RawDatasetReadsAsWritten) {
    const auto manifest = Manifest::open(write(four_files(), Format::raw));
    ASSERT_TRUE(manifest) << manifest.error().message;
    ASSERT_TRUE(manifest->check()) << manifest->check().error().message;
    EXPECT_EQ(manifest->url(), "file:///data");
    EXPECT_EQ(manifest->header().dataset_id, 77u);
    EXPECT_EQ(manifest->header().version, 3u);
    EXPECT_EQ(manifest->header().created_unix_ns, 123);
    EXPECT_EQ(manifest->object_count(), 4u);
    EXPECT_EQ(manifest->block_count(), 4u);
    EXPECT_EQ(manifest->sample_count(), 4u);
    EXPECT_EQ(manifest->total_bytes(), 1000u);
    EXPECT_EQ(manifest->header().block_bytes_max, 400u);
    EXPECT_EQ(manifest->header().block_id_end, 4u);
    EXPECT_EQ(manifest->class_name(0), "cats");
    EXPECT_EQ(manifest->class_name(1), "dogs");

    const std::vector<std::string> paths{"cats/1.jpg", "cats/2.jpg", "dogs/1.jpg", "top.jpg"};
    const std::vector<std::uint32_t> labels{0, 0, 1, kNoLabel};
    for (std::uint32_t i = 0; i < 4; ++i) {
        const Object object = manifest->object(i);
        EXPECT_EQ(object.path, paths[i]);
        EXPECT_EQ(object.label, labels[i]);
        EXPECT_EQ(object.size_bytes, 100u * (i + 1));
        EXPECT_EQ(object.mtime_ns, i + 1);
        EXPECT_EQ(object.first_block, i);
        EXPECT_EQ(object.block_count, 1u);
        const Block block = manifest->block(i);
        EXPECT_EQ(block.object, i);
        EXPECT_EQ(block.offset, 0u);
        EXPECT_EQ(block.length, 100u * (i + 1));
        EXPECT_EQ(block.first_sample, i);
        EXPECT_EQ(block.sample_count, 1u);
        EXPECT_EQ(block.block_id, i);
        EXPECT_EQ(manifest->block_id(i), i);
        EXPECT_EQ(manifest->sample(i).offset, 0u);
        EXPECT_EQ(manifest->sample(i).length, 100u * (i + 1));
        EXPECT_EQ(manifest->block_of_sample(i), i);
        EXPECT_EQ(manifest->find_object(paths[i]), i);
    }
    EXPECT_EQ(manifest->find_object("cats"), std::nullopt);
    EXPECT_EQ(manifest->find_object("zebras/1.jpg"), std::nullopt);
}

TEST_F(ManifestTest, BlocksOfManySamplesReadAsWritten) {
    const auto manifest = Manifest::open(write(two_shards(), Format::webdataset));
    ASSERT_TRUE(manifest) << manifest.error().message;
    ASSERT_TRUE(manifest->check()) << manifest->check().error().message;
    EXPECT_EQ(manifest->total_bytes(), 8000u);
    EXPECT_EQ(manifest->header().samples_per_block_max, 2u);
    EXPECT_EQ(manifest->object(0).path, "a.tar");
    EXPECT_EQ(manifest->object(0).block_count, 2u);
    EXPECT_EQ(manifest->object(1).first_block, 2u);
    EXPECT_EQ(manifest->object(1).block_count, 1u);

    const std::vector<std::uint32_t> block_of{0, 0, 1, 2, 2};
    for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(manifest->block_of_sample(i), block_of[i]);
    EXPECT_EQ(manifest->block(1).offset, 4000u);
    EXPECT_EQ(manifest->block(1).sample_count, 1u);
    EXPECT_EQ(manifest->block(2).object, 1u);
    EXPECT_EQ(manifest->block(2).offset, 512u);
    EXPECT_EQ(manifest->block(2).first_sample, 3u);
    EXPECT_EQ(manifest->block(2).block_id, 2u);
    EXPECT_EQ(manifest->sample(4).offset, 1000u);
    EXPECT_EQ(manifest->sample(4).length, 2000u);
}

TEST_F(ManifestTest, BoundsTheBytesOfAnyNumberOfBlocks) {
    DatasetContent content;
    std::vector<std::uint64_t> lengths;
    for (std::uint64_t i = 0; i < 1000; ++i) {
        lengths.push_back(1 + test::random_below(i % 7 == 0 ? 1'000'000 : 5000, i));
        content.add_object("file" + std::to_string(i), lengths.back(), 0, kNoLabel);
    }
    const auto manifest = Manifest::open(write(std::move(content), Format::raw));
    ASSERT_TRUE(manifest);
    std::ranges::sort(lengths, std::greater{});
    std::uint64_t sum = 0;
    EXPECT_EQ(manifest->blocks_bytes_max(0), 0u);
    for (std::uint64_t count = 1; count <= 1000; ++count) {
        sum += lengths[count - 1];
        EXPECT_GE(manifest->blocks_bytes_max(count), sum);
        EXPECT_LE(manifest->blocks_bytes_max(count), 2 * sum);
        if (std::has_single_bit(count)) {
            EXPECT_EQ(manifest->blocks_bytes_max(count), sum);
        }
    }
    EXPECT_EQ(manifest->blocks_bytes_max(5000), manifest->total_bytes());
}

TEST_F(ManifestTest, BoundIsExactForEqualBlocks) {
    DatasetContent content;
    for (int i = 0; i < 100; ++i) content.add_object("file" + std::to_string(i), 777, 0, kNoLabel);
    const auto manifest = Manifest::open(write(std::move(content), Format::raw));
    ASSERT_TRUE(manifest);
    for (std::uint64_t count = 0; count <= 100; ++count) EXPECT_EQ(manifest->blocks_bytes_max(count), 777 * count);
}

TEST_F(ManifestTest, DetectsEveryFlippedBitOfTheHeader) {
    const std::string good = test::read_bytes(write(two_shards(), Format::webdataset));
    for (std::size_t at = 0; at < kManifestHeaderBytes; ++at) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
        const auto manifest = open_bytes(bad);
        ASSERT_FALSE(manifest) << "byte " << at;
        EXPECT_TRUE(manifest.error().code == ErrorCode::corrupt || manifest.error().code == ErrorCode::unsupported);
    }
}

TEST_F(ManifestTest, DetectsEveryFlippedBitOfTheBodyAndReadsInBounds) {
    for (const bool raw : {true, false}) {
        const std::string good =
            test::read_bytes(raw ? write(four_files(), Format::raw) : write(two_shards(), Format::webdataset));
        for (std::size_t at = kManifestHeaderBytes; at < good.size(); ++at) {
            for (const int bits : {0x01, 0x80, 0xff}) {
                std::string bad = good;
                bad[at] = static_cast<char>(bad[at] ^ bits);
                const auto manifest = open_bytes(bad);
                ASSERT_TRUE(manifest) << "open does not read the body";
                touch_everything(*manifest);
                const auto checked = manifest->check();
                ASSERT_FALSE(checked);
                EXPECT_EQ(checked.error().code, ErrorCode::corrupt);
            }
        }
    }
}

TEST_F(ManifestTest, RefusesEveryTruncationAndGrowth) {
    const std::string good = test::read_bytes(write(four_files(), Format::raw));
    for (std::size_t bytes = 0; bytes < good.size(); bytes += bytes < kManifestHeaderBytes ? 97 : 1) {
        const auto manifest = open_bytes(good.substr(0, bytes));
        ASSERT_FALSE(manifest) << bytes;
        EXPECT_EQ(manifest.error().code, ErrorCode::corrupt);
    }
    EXPECT_FALSE(open_bytes(good + "x"));
    EXPECT_FALSE(open_bytes(""));
    EXPECT_EQ(Manifest::open(directory_ / "absent").error().code, ErrorCode::not_found);
}

// Changes fields and corrects both checksums, as a hostile writer would.
std::string forge(std::string bytes, const std::function<void(ManifestHeader&, char* body)>& change) {
    ManifestHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    change(header, bytes.data() + kManifestHeaderBytes);
    header.body_crc = crc32c(std::as_bytes(std::span(bytes).subspan(kManifestHeaderBytes)));
    header.header_crc = 0;
    std::memcpy(bytes.data(), &header, sizeof header);
    header.header_crc = crc32c(std::as_bytes(std::span(bytes).first(kManifestHeaderBytes)));
    std::memcpy(bytes.data(), &header, sizeof header);
    return bytes;
}

TEST_F(ManifestTest, OpenRefusesForgedHeaders) {
    const std::string good = test::read_bytes(write(two_shards(), Format::webdataset));
    ASSERT_TRUE(open_bytes(forge(good, [](ManifestHeader&, char*) {})));
    const auto refused = [&](const char* forged, const std::function<void(ManifestHeader&)>& change) {
        const auto manifest = open_bytes(forge(good, [&](ManifestHeader& header, char*) { change(header); }));
        ASSERT_FALSE(manifest) << forged;
        EXPECT_EQ(manifest.error().code, ErrorCode::corrupt) << forged;
    };
    constexpr std::uint64_t huge = std::uint64_t{1} << 61;  // times 8, 24 or 32 wraps to 0
    refused("objects", [](auto& h) { h.object_count = huge; });
    refused("no objects", [](auto& h) { h.object_count = 0; });
    refused("blocks", [](auto& h) { h.block_count = huge; });
    refused("samples", [](auto& h) { h.sample_count = huge; });
    refused("one more sample", [](auto& h) { h.sample_count += 1; });
    refused("classes", [](auto& h) { h.class_count = huge; });
    refused("names", [](auto& h) { h.names_bytes = ~std::uint64_t{0}; });
    refused("objects' offset", [](auto& h) { h.objects_offset = ~std::uint64_t{0}; });
    refused("samples' offset", [](auto& h) { h.samples_offset += 8; });
    refused("URL's offset", [](auto& h) { h.url_offset = ~std::uint64_t{0}; });
    refused("URL's length", [](auto& h) { h.url_bytes = ~std::uint64_t{0}; });
    refused("file's length", [](auto& h) { h.file_bytes += 1; });
    refused("longest block", [](auto& h) {
        h.block_bytes_max = kBlockBytesMax + 1;
        h.largest_blocks_bytes[0] = h.block_bytes_max;
    });
    refused("no longest block", [](auto& h) { h.block_bytes_max = 0; });
    refused("block ids", [](auto& h) { h.block_id_end = (std::uint64_t{1} << 32) + 1; });
    refused("few block ids", [](auto& h) { h.block_id_end = 2; });
    refused("format", [](auto& h) { h.format = Format{9}; });
    refused("target", [](auto& h) { h.block_target = BlockTarget{9}; });
    refused("flags", [](auto& h) { h.flags = 2; });
    refused("raw flag", [](auto& h) { h.flags = kOneSamplePerObject; });
    refused("total", [](auto& h) { h.total_bytes += 1; });
    refused("sums", [](auto& h) { h.largest_blocks_bytes[1] = ~std::uint64_t{0}; });
    refused("samples per block", [](auto& h) { h.samples_per_block_max = 6; });
}

TEST_F(ManifestTest, CheckRefusesForgedBodies) {
    const std::string good = test::read_bytes(write(two_shards(), Format::webdataset));
    struct Body {
        ManifestObject objects[2];
        ManifestBlock blocks[3];
        ManifestSample samples[5];
        char names[10];
    };
    const auto check_error = [&](const std::function<void(Body&)>& change) -> std::string {
        const auto manifest = open_bytes(forge(good, [&](ManifestHeader&, char* bytes) {
            Body body;
            std::memcpy(&body, bytes, sizeof body);
            change(body);
            std::memcpy(bytes, &body, sizeof body);
        }));
        EXPECT_TRUE(manifest) << manifest.error().message;
        touch_everything(*manifest);
        const auto checked = manifest->check();
        return checked ? "nothing" : checked.error().message;
    };
    EXPECT_EQ(check_error([](Body&) {}), "nothing");
    EXPECT_THAT(check_error([](Body& b) { std::swap(b.names[0], b.names[5]); }), HasSubstr("order of paths"));
    EXPECT_THAT(check_error([](Body& b) { std::memcpy(b.names, "../.a", 5); }), HasSubstr("no valid path"));
    EXPECT_THAT(check_error([](Body& b) { b.names[0] = '/'; }), HasSubstr("no valid path"));
    EXPECT_THAT(check_error([](Body& b) { b.names[1] = '\0'; }), HasSubstr("no valid path"));
    EXPECT_THAT(check_error([](Body& b) { b.objects[0].name_end_and_label |= 0xffffffff; }),
                HasSubstr("no valid path"));
    EXPECT_THAT(check_error([](Body& b) { b.objects[1].name_end_and_label &= 0xffffff; }), HasSubstr("unknown class"));
    EXPECT_THAT(check_error([](Body& b) { b.objects[1].first_block = 1; }), HasSubstr("block 1 names another object"));
    EXPECT_THAT(check_error([](Body& b) { b.objects[1].first_block_id = 1; }), HasSubstr("used twice"));
    EXPECT_THAT(check_error([](Body& b) { b.objects[1].first_block_id = 0xffffffff; }),
                HasSubstr("block ids out of range"));
    EXPECT_THAT(check_error([](Body& b) { b.objects[0].size_bytes = 10; }), HasSubstr("block 0 lies outside"));
    EXPECT_THAT(check_error([](Body& b) { b.blocks[0].object = 0xffffffff; }), HasSubstr("names another object"));
    EXPECT_THAT(check_error([](Body& b) { b.blocks[1].offset = 3999; }), HasSubstr("block 1 lies outside"));
    EXPECT_THAT(check_error([](Body& b) { b.blocks[1].offset = ~std::uint64_t{0}; }),
                HasSubstr("block 1 lies outside"));
    EXPECT_THAT(check_error([](Body& b) { b.blocks[0].length = 0; }), HasSubstr("block 0 has a length"));
    EXPECT_THAT(check_error([](Body& b) { b.blocks[0].length = 0xffffffff; }), HasSubstr("block 0 has a length"));
    EXPECT_THAT(check_error([](Body& b) { b.blocks[1].length = 1500; }), HasSubstr("total_bytes"));
    EXPECT_THAT(check_error([](Body& b) { b.blocks[1].first_sample = 0; }), HasSubstr("block 0 has no samples"));
    EXPECT_THAT(check_error([](Body& b) { b.blocks[2].first_sample = 0x7fffffff; }),
                HasSubstr("block 1 has samples past the last"));
    EXPECT_THAT(check_error([](Body& b) { b.samples[1].offset = 3999; }),
                HasSubstr("block 0 has a sample that lies outside it"));
    EXPECT_THAT(check_error([](Body& b) { b.samples[1].offset = 0xffffffff; }),
                HasSubstr("block 0 has a sample that lies outside it"));
    EXPECT_THAT(check_error([](Body& b) { b.samples[1].offset = 1000; }), HasSubstr("overlaps the previous sample"));
    EXPECT_THAT(check_error([](Body& b) { b.samples[4].length = 0; }),
                HasSubstr("block 2 has a sample that lies outside it"));
}

TEST_F(ManifestTest, PackedBlocksMayBeCompressedAndHaveChecksums) {
    DatasetContent content;
    // Objects may be added in any order. Their checksums follow them.
    content.add_object("b.larder", 9000, 7, kNoLabel);
    content.add_object("a.larder", 20'000, 7, kNoLabel);
    content.objects[0].first_block = 0;
    content.objects[1].first_block = 1;
    content.objects[1].block_count = 2;
    content.blocks = {{4096, 1000, 0, 1}, {4096, 900, 1, 2, 3000}, {8192, 500, 3, 1}};
    content.samples = {{0, 1000}, {0, 1500}, {1504, 1400}, {0, 500}};
    content.checksums = {11, 22, 33};
    content.sample_format = Format::tfrecord;
    const std::string path = write(std::move(content), Format::larder);
    const auto manifest = Manifest::open(path);
    ASSERT_TRUE(manifest) << manifest.error().message;
    ASSERT_TRUE(manifest->check());
    touch_everything(*manifest);
    EXPECT_EQ(manifest->sample_format(), Format::tfrecord);
    EXPECT_TRUE(manifest->has_compressed_blocks());
    EXPECT_FALSE(manifest->samples_by_ordinal());
    EXPECT_EQ(manifest->block(0).raw_bytes, 3000u);
    EXPECT_EQ(manifest->sample(1).offset, 1504u) << "the offset is in the decompressed block";
    ASSERT_TRUE(manifest->has_checksums());
    EXPECT_EQ(manifest->block_checksum(0), 22u);
    EXPECT_EQ(manifest->block_checksum(1), 33u);
    EXPECT_EQ(manifest->block_checksum(2), 11u);

    const std::string good = test::read_bytes(path);
    const auto refused = [&](const std::function<void(ManifestHeader&)>& change, std::string_view why) {
        const auto bad = open_bytes(forge(good, [&](ManifestHeader& header, char*) { change(header); }));
        const auto message = bad ? bad->check().error().message : bad.error().message;
        EXPECT_THAT(message, HasSubstr(std::string(why)));
    };
    refused([](auto& h) { h.sample_format = Format::raw; }, "unknown format of samples");
    refused([](auto& h) { h.sample_format = Format::larder; }, "unknown format of samples");
    refused([](auto& h) { h.sample_format = Format::mds; }, "lacks the format info");
    refused([](auto& h) { h.flags &= ~kCompressedBlocks; }, "although the flags exclude it");
    refused([](auto& h) { h.flags &= ~kBlockChecksums; }, "outside the file");
    refused([](auto& h) { h.checksums_offset += 4; }, "outside the file");
    refused([](auto& h) { h.layout = 1; }, "unknown flags");
}

TEST_F(ManifestTest, ChecksumsOfRawDatasetsFollowTheirObjects) {
    DatasetContent content = four_files();
    for (std::uint32_t i = 0; i < content.objects.size(); ++i) {
        content.objects[i].first_block = i;
        content.checksums.push_back(static_cast<std::uint32_t>(content.objects[i].size_bytes));
    }
    const auto manifest = Manifest::open(write(std::move(content), Format::raw));
    ASSERT_TRUE(manifest && manifest->check());
    ASSERT_TRUE(manifest->has_checksums());
    for (std::uint32_t i = 0; i < manifest->block_count(); ++i) {
        EXPECT_EQ(manifest->block_checksum(i), manifest->block_bytes(i));
    }
}

TEST_F(ManifestTest, OldestLayoutIsStillReadable) {
    const std::string good = test::read_bytes(write(two_shards(), Format::webdataset));
    const auto old = open_bytes(forge(good, [](ManifestHeader& header, char*) { header.layout = 1; }));
    ASSERT_TRUE(old) << old.error().message;
    EXPECT_TRUE(old->check());
    EXPECT_FALSE(old->has_checksums());
}

// Opening touches only the header's page and the page tables, whatever the number of samples. So a manifest of a
// million samples opens even if its file is a hole after the header.
TEST_F(ManifestTest, OpenReadsOnlyTheHeader) {
    DatasetContent content;
    content.names.reserve(std::size_t{1} << 24);
    for (std::uint32_t i = 0; i < 1'000'000; ++i) content.add_object(std::to_string(1'000'000 + i), 1000, 0, kNoLabel);
    const std::string path = write(std::move(content), Format::raw);
    const auto bytes = std::filesystem::file_size(path);
    EXPECT_LE(bytes, kManifestHeaderBytes + 1'000'000 * (32 + 7) + 12) << "32 bytes a sample plus names";
    {
        const auto manifest = Manifest::open(path);
        ASSERT_TRUE(manifest);
        EXPECT_TRUE(manifest->check());
        EXPECT_EQ(manifest->find_object("1999999"), 999'999u);
    }
    std::filesystem::resize_file(path, kManifestHeaderBytes);
    std::filesystem::resize_file(path, bytes);
    const auto manifest = Manifest::open(path);
    ASSERT_TRUE(manifest) << manifest.error().message;
    EXPECT_EQ(manifest->sample_count(), 1'000'000u);
    struct stat status{};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_LT(static_cast<std::uint64_t>(status.st_blocks) * 512, bytes / 100)
        << "the body must be a hole, or this test shows nothing";
    EXPECT_FALSE(manifest->check());
}

TEST_F(ManifestTest, StaysValidAfterItsDescriptorIsClosed) {
    auto file = open_file(write(four_files(), Format::raw), O_RDONLY);
    ASSERT_TRUE(file);
    const auto manifest = Manifest::open(file->get());
    file->reset();
    ASSERT_TRUE(manifest);
    EXPECT_TRUE(manifest->check());
}

}  // namespace
}  // namespace larder::protocol
