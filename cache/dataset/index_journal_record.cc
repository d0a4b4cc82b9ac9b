#include "cache/dataset/index_journal_record.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "cache/protocol/claims.h"
#include "cache/protocol/little_endian.h"

namespace larder::cache {
namespace {

using protocol::load;

constexpr std::uint64_t kRecordBytesMax = std::uint64_t{1} << 30;
constexpr std::size_t kCrcBytes = sizeof(std::uint32_t);

std::uint64_t padded(std::uint64_t bytes) {
    return (bytes + 7) & ~std::uint64_t{7};
}

std::uint64_t record_bytes_of(const JournalRecord& record) {
    return padded(sizeof record + record.block_count * std::uint64_t{sizeof(JournalBlock)} +
                  record.sample_count * std::uint64_t{sizeof(protocol::ManifestSample)} +
                  record.checksum_count * std::uint64_t{sizeof(std::uint32_t)} + record.shared_bytes +
                  record.path_bytes);
}

template <typename T>
void append_value(std::string& out, const T& value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
std::vector<T> take_values(std::span<const std::byte>& input, std::size_t count) {
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), input.data(), count * sizeof(T));
    input = input.subspan(count * sizeof(T));
    return values;
}

std::string_view take_text(std::span<const std::byte>& input, std::size_t bytes) {
    const std::string_view text(reinterpret_cast<const char*>(input.data()), bytes);
    input = input.subspan(bytes);
    return text;
}

std::span<const std::byte> as_bytes(std::string_view text) {
    return std::as_bytes(std::span(text));
}

// Adds the blocks and computes their first_sample. Returns false if a block is invalid or lies outside the object.
bool add_blocks(std::span<const JournalBlock> stored, bool has_samples, IndexedObject& object) {
    std::uint64_t next = 0;
    for (const JournalBlock& block : stored) {
        if (block.length == 0 || block.length > protocol::kBlockBytesMax || block.sample_count == 0 ||
            block.raw_bytes > protocol::kBlockBytesMax ||
            !protocol::lies_within(block.offset, block.length, object.size_bytes)) {
            return false;
        }
        object.blocks.push_back({.offset = block.offset,
                                 .length = block.length,
                                 .first_sample = has_samples ? static_cast<std::uint32_t>(next) : 0,
                                 .sample_count = block.sample_count,
                                 .raw_bytes = block.raw_bytes});
        next += block.sample_count;
        if (has_samples && next > object.samples.size()) return false;
    }
    return !has_samples || next == object.samples.size();
}

// True if each sample lies inside its block.
bool samples_fit(const IndexedObject& object) {
    if (object.samples.empty()) return true;
    for (const DatasetContent::Block& block : object.blocks) {
        const std::uint64_t bytes = block.raw_bytes > 0 ? block.raw_bytes : block.length;
        const auto of_block = std::span(object.samples).subspan(block.first_sample, block.sample_count);
        const bool fit = std::ranges::all_of(of_block, [&](const protocol::ManifestSample& sample) {
            return protocol::lies_within(sample.offset, sample.length, bytes);
        });
        if (!fit) return false;
    }
    return true;
}

}  // namespace

JournalHeader make_journal_header(std::uint64_t what) {
    JournalHeader header{.magic = {}, .layout = kJournalLayout, .crc = 0, .what = what, .reserved = 0};
    std::memcpy(header.magic, kJournalMagic, sizeof header.magic);
    header.crc = crc32c(std::as_bytes(std::span(&header, 1)));
    return header;
}

bool is_journal_of(std::span<const std::byte> file, std::uint64_t what) {
    const JournalHeader header = make_journal_header(what);
    return file.size() >= sizeof header && std::memcmp(file.data(), &header, sizeof header) == 0;
}

std::string encode_journal_record(const JournalKey& key, const IndexedObject& object) {
    if (std::max({object.blocks.size(), object.samples.size(), object.checksums.size(), object.shared.size(),
                  key.path.size()}) > kRecordBytesMax) {
        return {};
    }
    JournalRecord record{.crc = 0,
                         .record_bytes = 0,
                         .kind = key.kind,
                         .path_bytes = static_cast<std::uint32_t>(key.path.size()),
                         .size_bytes = key.size_bytes,
                         .tag = key.tag,
                         .depends_on = key.depends_on,
                         .block_count = static_cast<std::uint32_t>(object.blocks.size()),
                         .sample_count = static_cast<std::uint32_t>(object.samples.size()),
                         .checksum_count = static_cast<std::uint32_t>(object.checksums.size()),
                         .shared_bytes = static_cast<std::uint32_t>(object.shared.size()),
                         .empty_samples = object.empty_samples,
                         .left_over_bytes = object.left_over_bytes,
                         .members_not_files = object.members_not_files,
                         .members_without_key = object.members_without_key};
    const std::uint64_t bytes = record_bytes_of(record);
    if (bytes > kRecordBytesMax) return {};
    record.record_bytes = static_cast<std::uint32_t>(bytes);
    std::string out;
    out.reserve(bytes);
    append_value(out, record);
    for (const DatasetContent::Block& block : object.blocks) {
        append_value(out, JournalBlock{.offset = block.offset,
                                       .length = block.length,
                                       .sample_count = block.sample_count,
                                       .raw_bytes = block.raw_bytes,
                                       .reserved = 0});
    }
    for (const protocol::ManifestSample& sample : object.samples) append_value(out, sample);
    for (const std::uint32_t checksum : object.checksums) append_value(out, checksum);
    out += object.shared;
    out += key.path;
    out.resize(bytes, '\0');
    const std::uint32_t crc = crc32c(as_bytes(std::string_view(out).substr(kCrcBytes)));
    std::memcpy(out.data(), &crc, sizeof crc);
    return out;
}

JournalKey journal_key(std::span<const std::byte> record) {
    const auto header = load<JournalRecord>(record);
    const std::size_t path_offset = sizeof header + header.block_count * sizeof(JournalBlock) +
                                    header.sample_count * sizeof(protocol::ManifestSample) +
                                    header.checksum_count * sizeof(std::uint32_t) + header.shared_bytes;
    auto rest = record.subspan(path_offset);
    return {.kind = header.kind,
            .path = take_text(rest, header.path_bytes),
            .size_bytes = header.size_bytes,
            .tag = header.tag,
            .depends_on = header.depends_on};
}

std::optional<IndexedObject> decode_journal_record(std::span<const std::byte> record) {
    const auto header = load<JournalRecord>(record);
    auto rest = record.subspan(sizeof header);
    IndexedObject object{.size_bytes = header.size_bytes,
                         .tag = header.tag,
                         .empty_samples = header.empty_samples,
                         .left_over_bytes = header.left_over_bytes,
                         .members_not_files = header.members_not_files,
                         .members_without_key = header.members_without_key};
    const auto blocks = take_values<JournalBlock>(rest, header.block_count);
    object.samples = take_values<protocol::ManifestSample>(rest, header.sample_count);
    object.checksums = take_values<std::uint32_t>(rest, header.checksum_count);
    object.shared = take_text(rest, header.shared_bytes);
    object.path = take_text(rest, header.path_bytes);
    if (header.kind == JournalKind::checksums) {
        return blocks.empty() && object.samples.empty() ? std::optional(std::move(object)) : std::nullopt;
    }
    if (header.kind != JournalKind::index) return std::nullopt;
    if (!object.checksums.empty() && object.checksums.size() != blocks.size()) return std::nullopt;
    if (!add_blocks(blocks, !object.samples.empty(), object) || !samples_fit(object)) return std::nullopt;
    return object;
}

std::span<const std::byte> JournalScan::next() {
    if (!protocol::lies_within(offset_, sizeof(JournalRecord), file_.size())) return {};
    const auto rest = file_.subspan(offset_);
    const auto header = load<JournalRecord>(rest);
    if (!protocol::lies_within(0, header.record_bytes, rest.size()) || header.record_bytes > kRecordBytesMax ||
        header.record_bytes != record_bytes_of(header)) {
        return {};
    }
    const auto record = rest.first(header.record_bytes);
    if (crc32c(record.subspan(kCrcBytes)) != header.crc) return {};
    offset_ += record.size();
    return record;
}

}  // namespace larder::cache
