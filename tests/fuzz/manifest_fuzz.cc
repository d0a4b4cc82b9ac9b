// Manifests with any bytes changed and both checksums repaired: open and check refuse or accept, and no accessor reads
// outside the mapping. After a check that passes, every block and sample lies inside its container. The input is a list
// of edits, (offset, value) in 3 bytes each, to a small valid manifest, which the first byte selects.

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/assert.h"
#include "base/file.h"
#include "base/hash.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/protocol/format_info.h"

namespace larder::protocol {
namespace {

using cache::DatasetContent;

constexpr std::uint64_t kSamplesCheckedMax = 4096;

std::string write(DatasetContent content, Format format) {
    char path[] = "/tmp/larder-fuzz-XXXXXX";
    const FileDescriptor file(::mkstemp(path));
    LARDER_ASSERT(file);
    LARDER_ASSERT(write_manifest(content, {.url = "file:///data", .format = format}, {.path = path}));
    auto bytes = read_file(path);
    ::unlink(path);
    LARDER_ASSERT(bytes);
    return *bytes;
}

std::string raw() {
    DatasetContent content;
    content.classes = {"cats", "dogs"};
    content.add_object("cats/1", 100, 1, 0);
    content.add_object("dogs/2", 200, 2, 1);
    content.add_object("top", 300, 3, kNoLabel);
    return write(std::move(content), Format::raw);
}

std::string webdataset() {
    DatasetContent content;
    content.add_object("a.tar", 9000, 10, kNoLabel);
    content.add_object("b.tar", 5000, 20, kNoLabel);
    content.objects[0].block_count = 2;
    content.objects[1].first_block = 2;
    content.blocks = {{0, 4000, 0, 2}, {4000, 1000, 2, 1}, {512, 3000, 3, 2}};
    content.samples = {{0, 1500}, {2000, 2000}, {0, 1000}, {0, 1000}, {1000, 2000}};
    return write(std::move(content), Format::webdataset);
}

std::string packed() {
    DatasetContent content;
    content.add_object("a.larder", 20'000, 7, kNoLabel);
    content.objects[0].block_count = 2;
    content.blocks = {{4096, 900, 0, 2, 3000}, {8192, 1000, 2, 1}};
    content.samples = {{0, 1500}, {1504, 1400}, {0, 1000}};
    content.checksums = {1, 2};
    content.sample_format = Format::tfrecord;
    return write(std::move(content), Format::larder);
}

std::string mds_zstd() {
    DatasetContent content;
    content.add_object("shard.00000.mds.zstd", 3000, 7, kNoLabel);
    content.add_object("shard.00001.mds.zstd", 2000, 8, kNoLabel);
    content.objects[1].first_block = 1;
    content.blocks = {{0, 3000, 0, 12, 8000}, {0, 2000, 0, 7, 5000}};
    content.samples_by_ordinal = true;
    content.format_info = encode(FormatInfo{.columns = {{"a", "int", 8}, {"b", "str", 0}}});
    return write(std::move(content), Format::mds);
}

void repair(std::string& bytes) {
    if (bytes.size() < kManifestHeaderBytes) return;
    ManifestHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    header.file_bytes = bytes.size();
    header.body_crc = crc32c(std::as_bytes(std::span(bytes).subspan(kManifestHeaderBytes)));
    header.header_crc = 0;
    std::memcpy(bytes.data(), &header, sizeof header);
    header.header_crc = crc32c(std::as_bytes(std::span(bytes).first(kManifestHeaderBytes)));
    std::memcpy(bytes.data(), &header, sizeof header);
}

void use(const Manifest& manifest) {
    const bool good = manifest.check().has_value();
    std::uint64_t sum = manifest.url().size();
    for (std::uint64_t i = 0; i < manifest.object_count(); ++i) {
        for (const char c : manifest.object(i).path) sum += static_cast<unsigned char>(c);
        const auto found = manifest.find_object(manifest.object(i).path);
        LARDER_ASSERT(!good || found == i);
    }
    for (std::uint32_t i = 0; i < manifest.block_count(); ++i) {
        const Block block = manifest.block(i);
        LARDER_ASSERT(block.length <= manifest.header().block_bytes_max);
        if (!good) continue;
        LARDER_ASSERT(block.offset + block.length <= manifest.object(block.object).size_bytes);
        LARDER_ASSERT(block.block_id < manifest.header().block_id_end);
        LARDER_ASSERT(block.sample_count <= manifest.header().samples_per_block_max);
    }
    // Without an array of samples, nothing bounds the number of samples that a header claims.
    for (std::uint64_t i = 0; i < std::min(manifest.sample_count(), kSamplesCheckedMax); ++i) {
        const std::uint32_t block = manifest.block_of_sample(i);
        const SampleExtent extent = manifest.sample(i);
        LARDER_ASSERT(block < manifest.block_count());
        const std::uint32_t raw_bytes = manifest.block(block).raw_bytes;
        const std::uint32_t bytes =
            raw_bytes > 0 && !manifest.samples_by_ordinal() ? raw_bytes : manifest.block_bytes(block);
        LARDER_ASSERT(!good || std::uint64_t{extent.offset} + extent.length <= bytes);
    }
    for (std::uint64_t i = 0; i < manifest.header().class_count; ++i) {
        for (const char c : manifest.class_name(i)) sum += static_cast<unsigned char>(c);
    }
    for (std::uint32_t i = 0; manifest.has_checksums() && i < manifest.block_count(); ++i)
        sum += manifest.block_checksum(i);
    for (std::uint64_t count = 0; count < 10; ++count) sum += manifest.blocks_bytes_max(count);
    [[maybe_unused]] volatile std::uint64_t sink = sum;
}

}  // namespace
}  // namespace larder::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace larder::protocol;
    static const std::string bases[4] = {raw(), webdataset(), packed(), mds_zstd()};
    static const larder::FileDescriptor file(::memfd_create("manifest", MFD_CLOEXEC));
    if (size == 0) return 0;
    std::string bytes = bases[(data[0] >> 1) % 4];
    // Offsets 0..511 edit the header and larger ones the body, so that no edit is wasted on the padding between them.
    const std::size_t body_bytes = bytes.size() - kManifestHeaderBytes;
    for (std::size_t i = 1; i + 3 <= size; i += 3) {
        const std::size_t at = (data[i] | data[i + 1] << 8) % (512 + body_bytes);
        bytes[at < 512 ? at : kManifestHeaderBytes + at - 512] = static_cast<char>(data[i + 2]);
    }
    if (data[0] & 1) bytes.resize(bytes.size() - (data[0] >> 2));
    repair(bytes);
    LARDER_ASSERT(::ftruncate(file.get(), static_cast<off_t>(bytes.size())) == 0);
    LARDER_ASSERT(::pwrite(file.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    if (const auto manifest = Manifest::open(file.get())) use(*manifest);
    return 0;
}
