#include "cache/dataset/manifest_writer.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>

#include "base/assert.h"
#include "base/file.h"
#include "base/hash.h"

namespace larder::cache {
namespace {

using protocol::Manifest;
using protocol::ManifestHeader;

constexpr std::uint64_t kBlockIdsMax = std::uint64_t{1} << 32;
constexpr std::uint64_t kNamesBytesMax = std::uint64_t{1} << 40;

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
    return std::as_bytes(std::span(&value, 1));
}

// Writes the body of the file through a buffer and computes its CRC. `finish` reports the first error.
class BodyStream {
public:
    BodyStream(int fd, std::uint64_t offset) : fd_(fd), offset_(offset) { buffer_.reserve(kBufferBytes); }

    void put(std::span<const std::byte> bytes) {
        count_content(bytes);
        put_beside_content(bytes);
    }
    // For bytes that differ between nodes with the same content.
    void put_beside_content(std::span<const std::byte> bytes) {
        if (buffer_.size() + bytes.size() > kBufferBytes) flush();
        if (bytes.size() > kBufferBytes) {
            write_out(bytes);
        } else {
            buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
        }
    }

    void count_content(std::span<const std::byte> bytes) { content_crc_ = crc32c(bytes, content_crc_); }
    std::uint32_t content_crc() const { return content_crc_; }

    // The file offset of the next byte.
    std::uint64_t position() const { return offset_ + buffer_.size(); }

    Result<std::uint32_t> finish() {
        flush();
        if (system_errno_ != 0) return fail_errno(system_errno_, "write");
        return crc_;
    }

private:
    static constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

    void flush() {
        write_out(buffer_);
        buffer_.clear();
    }

    void write_out(std::span<const std::byte> bytes) {
        crc_ = crc32c(bytes, crc_);
        while (!bytes.empty() && system_errno_ == 0) {
            const ssize_t put = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset_));
            if (put < 0) {
                if (errno != EINTR) system_errno_ = errno;
                continue;
            }
            offset_ += static_cast<std::uint64_t>(put);
            bytes = bytes.subspan(static_cast<std::size_t>(put));
        }
    }

    int fd_;
    std::uint64_t offset_;
    std::uint32_t crc_ = 0;
    std::uint32_t content_crc_ = 0;
    int system_errno_ = 0;
    std::vector<std::byte> buffer_;
};

// Assigns the first block id of each object.
class BlockIds {
public:
    BlockIds(const DatasetContent& content, std::string_view url, const Manifest* previous) : content_(content) {
        if (previous == nullptr) return;
        next_id_ = previous->header().block_id_end;
        // Under another URL, an equal path does not imply equal bytes.
        if (previous->url() == url) previous_ = previous;
    }

    // Returns the first block id, and whether it is carried over from an unchanged object. Call with objects sorted by
    // path.
    std::pair<std::uint32_t, bool> next(const DatasetContent::Object& object) {
        const std::string_view path = content_.name(object);
        while (previous_ != nullptr && at_ < previous_->object_count() && previous_->object(at_).path < path) ++at_;
        if (previous_ != nullptr && at_ < previous_->object_count() && is_unchanged(object, previous_->object(at_))) {
            return {previous_->object(at_).first_block_id, true};
        }
        const std::uint64_t id = next_id_;
        next_id_ += object.block_count;
        return {static_cast<std::uint32_t>(id), false};
    }

    std::uint64_t end() const { return next_id_; }

private:
    bool is_unchanged(const DatasetContent::Object& now, const protocol::Object& before) const {
        if (before.path != content_.name(now) || !is_same_version(now, before)) return false;
        for (std::uint32_t i = 0; i < now.block_count; ++i) {
            const protocol::Block block = previous_->block(before.first_block + i);
            const std::uint64_t offset = content_.blocks.empty() ? 0 : content_.blocks[now.first_block + i].offset;
            const std::uint64_t length =
                content_.blocks.empty() ? now.size_bytes : content_.blocks[now.first_block + i].length;
            if (block.offset != offset || block.length != length) return false;
        }
        return true;
    }

    const DatasetContent& content_;
    const Manifest* previous_ = nullptr;
    std::uint64_t at_ = 0;
    std::uint64_t next_id_ = 0;
};

Result<void> check_content(const DatasetContent& content, const ManifestVersion& version) {
    if (content.objects.empty()) return fail(ErrorCode::invalid_argument, "the dataset is empty");
    const std::uint64_t samples = content.sample_count();
    if (samples >= kBlockIdsMax) {
        return fail(ErrorCode::unsupported,
                    "a dataset has fewer than 4294967296 samples, this one has " + std::to_string(samples));
    }
    if (content.names.size() >= kNamesBytesMax / 2)
        return fail(ErrorCode::unsupported, "the names are longer than 512 GiB");
    if (content.classes.size() >= protocol::kNoLabelStored) {
        return fail(ErrorCode::unsupported, "a dataset has fewer than 16777215 classes, this one has " +
                                                std::to_string(content.classes.size()));
    }
    if (version.previous != nullptr && version.previous->header().dataset_id != version.dataset_id) {
        return fail(ErrorCode::invalid_argument, "the previous manifest belongs to another dataset");
    }
    return {};
}

// Fills the header's counts and sizes of blocks and samples.
void summarise_blocks(const DatasetContent& content, ManifestHeader& header) {
    std::vector<std::uint32_t> lengths;
    lengths.reserve(std::max(content.blocks.size(), content.objects.size()));
    header.samples_per_block_max = 1;
    if (content.blocks.empty()) {
        for (const auto& object : content.objects) lengths.push_back(static_cast<std::uint32_t>(object.size_bytes));
    }
    for (const auto& block : content.blocks) {
        lengths.push_back(block.length);
        header.samples_per_block_max = std::max(header.samples_per_block_max, block.sample_count);
    }
    std::ranges::sort(lengths, std::greater{});
    std::uint64_t sum_bytes = 0;
    std::size_t taken = 0;
    for (std::size_t i = 0; i < protocol::kLargestBlocksEntries; ++i) {
        const std::uint64_t count = std::min<std::uint64_t>(std::uint64_t{1} << i, lengths.size());
        for (; taken < count; ++taken) sum_bytes += lengths[taken];
        header.largest_blocks_bytes[i] = sum_bytes;
    }
    header.block_count = lengths.size();
    header.sample_count = content.sample_count();
    header.total_bytes = sum_bytes;
    header.block_bytes_max = lengths.front();
}

void put_objects(const DatasetContent& content, BlockIds& block_ids, BodyStream& out, ManifestSummary& summary) {
    std::uint64_t name_end = 0;
    std::uint32_t next_block = 0;
    for (const auto& object : content.objects) {
        name_end += object.name_bytes;
        const std::uint64_t label = object.label == protocol::kNoLabel ? protocol::kNoLabelStored : object.label;
        const auto [first_block_id, carried_over] = block_ids.next(object);
        protocol::ManifestObject stored{.size_bytes = object.size_bytes,
                                        .mtime_ns = object.mtime_ns,
                                        .name_end_and_label = name_end | label << 40,
                                        .first_block = next_block,
                                        .first_block_id = 0};
        // Block ids depend on the versions that this node has indexed before.
        out.count_content(bytes_of(stored));
        stored.first_block_id = first_block_id;
        out.put_beside_content(bytes_of(stored));
        next_block += object.block_count;
        summary.objects_carried_over += carried_over;
        summary.bytes_carried_over += carried_over ? object.size_bytes : 0;
    }
}

void put_blocks_and_samples(const DatasetContent& content, ManifestHeader& header, BodyStream& out) {
    header.blocks_offset = out.position();
    std::uint32_t next_sample = 0;
    for (std::uint32_t i = 0; i < content.objects.size(); ++i) {
        const auto& object = content.objects[i];
        for (std::uint32_t j = 0; j < (content.blocks.empty() ? 0 : object.block_count); ++j) {
            const auto& block = content.blocks[object.first_block + j];
            out.put(bytes_of(protocol::ManifestBlock{.offset = block.offset,
                                                     .length = block.length,
                                                     .object = i,
                                                     .first_sample = next_sample,
                                                     .raw_bytes = block.raw_bytes}));
            next_sample += block.sample_count;
        }
    }
    header.samples_offset = out.position();
    if (content.samples_by_ordinal) return;
    for (const auto& object : content.objects) {
        for (std::uint32_t j = 0; j < (content.blocks.empty() ? 0 : object.block_count); ++j) {
            const auto& block = content.blocks[object.first_block + j];
            out.put(std::as_bytes(std::span(content.samples).subspan(block.first_sample, block.sample_count)));
        }
    }
}

void put_checksums(const DatasetContent& content, ManifestHeader& header, BodyStream& out) {
    if (content.checksums.empty()) return;
    header.flags |= protocol::kBlockChecksums;
    header.checksums_offset = out.position();
    for (const auto& object : content.objects) {
        out.put_beside_content(
            std::as_bytes(std::span(content.checksums).subspan(object.first_block, object.block_count)));
    }
}

// Returns the bytes that it has put at `at` among the names.
std::uint64_t put_block_details(const DatasetContent& content, std::uint64_t at, ManifestHeader& header,
                                BodyStream& out) {
    if (content.block_details.empty()) return 0;
    std::uint64_t end = 0;
    const auto for_each = [&](auto put) {
        for (const auto& object : content.objects) {
            for (std::uint32_t i = 0; i < object.block_count; ++i) put(content.block_details[object.first_block + i]);
        }
    };
    for_each([&](const std::string& details) {
        end += details.size();
        out.put(bytes_of(end));
    });
    for_each([&](const std::string& details) { out.put(std::as_bytes(std::span(details))); });
    header.block_details_offset = at;
    header.block_details_bytes = content.blocks.size() * sizeof end + end;
    return header.block_details_bytes;
}

void put_classes_and_names(const DatasetContent& content, std::string_view url, ManifestHeader& header,
                           BodyStream& out) {
    header.class_count = content.classes.size();
    header.classes_offset = out.position();
    std::uint64_t at = 0;
    for (const auto& object : content.objects) at += object.name_bytes;
    for (const auto& name : content.classes) {
        out.put(bytes_of(protocol::ManifestClass{at, name.size()}));
        at += name.size();
    }
    put_checksums(content, header, out);
    header.names_offset = out.position();
    const auto put_text = [&](std::string_view text) { out.put(std::as_bytes(std::span(text))); };
    for (const auto& object : content.objects) put_text(content.name(object));
    for (const auto& name : content.classes) put_text(name);
    put_text(url);
    header.url_offset = at;
    header.url_bytes = url.size();
    at += url.size();
    put_text(content.format_info);
    header.format_info_offset = content.format_info.empty() ? 0 : at;
    header.format_info_bytes = content.format_info.size();
    at += content.format_info.size();
    header.names_bytes = at + put_block_details(content, at, header, out);
    header.file_bytes = out.position();
}

Result<void> write_header(int fd, ManifestHeader& header) {
    std::array<std::byte, protocol::kManifestHeaderBytes> page{};
    std::memcpy(page.data(), &header, sizeof header);
    header.header_crc = crc32c(page);
    std::memcpy(page.data(), &header, sizeof header);
    if (::pwrite(fd, page.data(), page.size(), 0) != static_cast<ssize_t>(page.size()))
        return fail_errno(errno, "write");
    return {};
}

Result<ManifestSummary> write_file(int fd, DatasetContent& content, const DatasetDefinition& definition,
                                   const ManifestVersion& version) {
    ManifestHeader header{};
    std::memcpy(header.magic, "LARDERMF", sizeof header.magic);
    header.layout = protocol::kManifestLayout;
    header.flags = definition.format == protocol::Format::raw ? protocol::kOneSamplePerObject
                   : content.samples_by_ordinal               ? protocol::kSamplesByOrdinal
                                                              : 0;
    const auto is_compressed = [](const DatasetContent::Block& block) { return block.raw_bytes > 0; };
    if (std::ranges::any_of(content.blocks, is_compressed)) header.flags |= protocol::kCompressedBlocks;
    header.sample_format = content.sample_format;
    header.dataset_id = version.dataset_id;
    header.version = version.version;
    header.format = *definition.format;
    header.block_target = definition.block.target;
    header.block_target_bytes = definition.block.bytes;
    header.created_unix_ns = version.created_unix_ns;
    header.object_count = content.objects.size();
    header.objects_offset = protocol::kManifestHeaderBytes;
    summarise_blocks(content, header);

    ManifestSummary summary{.object_count = header.object_count,
                            .block_count = header.block_count,
                            .sample_count = header.sample_count,
                            .class_count = content.classes.size(),
                            .total_bytes = header.total_bytes};
    BlockIds block_ids(content, definition.url, version.previous);
    BodyStream out(fd, protocol::kManifestHeaderBytes);
    put_objects(content, block_ids, out, summary);
    put_blocks_and_samples(content, header, out);
    put_classes_and_names(content, definition.url, header, out);
    auto crc = out.finish();
    if (!crc) return std::unexpected(crc.error());
    header.body_crc = *crc;
    header.content_crc = out.content_crc();
    header.block_id_end = block_ids.end();
    if (header.block_id_end > kBlockIdsMax) {
        return fail(ErrorCode::unsupported,
                    "the versions of this dataset have used up its 4294967296 block ids; add the dataset again under "
                    "another name");
    }
    if (auto written = write_header(fd, header); !written) return std::unexpected(written.error());
    if (::fsync(fd) != 0) return fail_errno(errno, "fsync");
    return summary;
}

}  // namespace

std::uint64_t DatasetContent::sample_count() const {
    if (blocks.empty()) return objects.size();
    std::uint64_t count = 0;
    for (const Block& block : blocks) count += block.sample_count;
    return count;
}

void DatasetContent::add_object(std::string_view path, std::uint64_t size_bytes, std::int64_t mtime_ns,
                                std::uint32_t label) {
    objects.push_back({.name_offset = names.size(),
                       .size_bytes = size_bytes,
                       .mtime_ns = mtime_ns,
                       .name_bytes = static_cast<std::uint32_t>(path.size()),
                       .label = label,
                       .first_block = 0,
                       .block_count = 1});
    names += path;
}

bool is_same_version(const DatasetContent::Object& now, const protocol::Object& before) {
    return now.mtime_ns != 0 && before.mtime_ns == now.mtime_ns && before.size_bytes == now.size_bytes &&
           before.block_count == now.block_count;
}

Result<ManifestSummary> write_manifest(DatasetContent& content, const DatasetDefinition& definition,
                                       const ManifestVersion& version) {
    LARDER_ASSERT(definition.format.has_value());
    LARDER_ASSERT((definition.format == protocol::Format::raw) == content.blocks.empty());
    if (auto valid = check_content(content, version); !valid) return std::unexpected(valid.error());
    const auto by_path = [&](const auto& a, const auto& b) { return content.name(a) < content.name(b); };
    if (!std::ranges::is_sorted(content.objects, by_path)) std::ranges::sort(content.objects, by_path);

    const std::string temporary = version.path + ".new";
    auto file = open_file(temporary, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (!file) return std::unexpected(file.error());
    auto summary = write_file(file->get(), content, definition, version);
    if (summary && ::rename(temporary.c_str(), version.path.c_str()) != 0)
        summary = fail_errno(errno, "rename to " + version.path);
    if (!summary) {
        ::unlink(temporary.c_str());
        return std::unexpected(summary.error().within("manifest " + version.path));
    }
    const std::string directory = std::filesystem::path(version.path).parent_path();
    if (auto synced = sync_directory(directory); !synced) return std::unexpected(synced.error());
    return summary;
}

}  // namespace larder::cache
