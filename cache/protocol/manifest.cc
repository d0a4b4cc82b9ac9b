#include "cache/protocol/manifest.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/hash.h"
#include "cache/protocol/format_info.h"
#include "cache/protocol/little_endian.h"

namespace larder::protocol {
namespace {

constexpr std::uint64_t kNameEndMask = (std::uint64_t{1} << 40) - 1;
constexpr std::uint64_t kBlockIdsMax = std::uint64_t{1} << 32;

std::unexpected<Error> corrupt(std::string_view what) {
    return fail(ErrorCode::corrupt, "manifest: " + std::string(what) + "; index the dataset again");
}

std::uint32_t header_crc(const std::byte* page) {
    std::array<std::byte, kManifestHeaderBytes> copy;
    std::memcpy(copy.data(), page, copy.size());
    std::memset(copy.data() + offsetof(ManifestHeader, header_crc), 0, sizeof(std::uint32_t));
    return crc32c(copy);
}

// Walks the arrays, which follow each other without gaps, so that the counts imply each offset. Checks every sum for
// overflow.
class LayoutWalk {
public:
    explicit LayoutWalk(std::uint64_t file_bytes) : file_bytes_(file_bytes) {}

    // True if an array of `count` entries at `offset` comes next and fits.
    bool next(std::uint64_t offset, std::uint64_t count, std::uint64_t entry_bytes) {
        if (offset != position_ || count > (file_bytes_ - position_) / entry_bytes) return false;
        position_ += count * entry_bytes;
        return true;
    }
    bool at_end() const { return position_ == file_bytes_; }

private:
    std::uint64_t file_bytes_;
    std::uint64_t position_ = kManifestHeaderBytes;
};

bool is_within(std::uint64_t offset, std::uint64_t bytes, std::uint64_t size) {
    return offset <= size && bytes <= size - offset;
}

Result<void> check_values(const ManifestHeader& header) {
    const std::uint32_t known_flags =
        header.layout == 1 ? kOneSamplePerObject | kSamplesByOrdinal
                           : kOneSamplePerObject | kSamplesByOrdinal | kBlockChecksums | kCompressedBlocks;
    if (header.flags & ~known_flags) return corrupt("unknown flags");
    if (std::ranges::find(kFormats, header.format) == kFormats.end()) return corrupt("unknown format");
    const Format sample_format = header.format == Format::larder ? header.sample_format : header.format;
    if (header.format == Format::larder && !may_be_packed(sample_format)) return corrupt("unknown format of samples");
    const bool raw = header.format == Format::raw;
    if (raw != ((header.flags & kOneSamplePerObject) != 0)) return corrupt("flags do not fit the format");
    const bool has_tables = header.format == Format::mds || header.format == Format::litdata;
    const bool is_parquet = header.format == Format::parquet;
    const bool is_array_record = header.format == Format::array_record;
    const bool by_ordinal = (header.flags & kSamplesByOrdinal) != 0;
    if (by_ordinal ? !has_tables && !is_parquet && !is_array_record : is_parquet || is_array_record)
        return corrupt("flags do not fit the format");
    if (is_parquet && header.block_details_bytes == 0)
        return corrupt("it lacks the block details that its format needs");
    if ((header.format == Format::mds || is_array_record) && header.block_details_bytes > 0)
        return corrupt("it has block details, which its format does not have");
    const bool may_compress = has_tables || is_array_record || header.format == Format::larder;
    if ((header.flags & kCompressedBlocks) != 0 && !may_compress) return corrupt("flags do not fit the format");
    const bool has_columns = sample_format == Format::mds || sample_format == Format::litdata ||
                             sample_format == Format::megatron || sample_format == Format::parquet;
    if (has_columns && header.format_info_bytes == 0) return corrupt("it lacks the format info that its format needs");
    if (header.format_info_bytes > kFormatInfoBytesMax) return corrupt("the format info is too long");
    if (header.block_target != BlockTarget::sample && header.block_target != BlockTarget::object &&
        header.block_target != BlockTarget::bytes) {
        return corrupt("unknown block target");
    }
    if (header.object_count == 0) return corrupt("no objects");
    if (header.object_count > header.block_count || header.block_count > header.sample_count) {
        return corrupt("fewer samples than blocks, or fewer blocks than objects");
    }
    if (raw && header.object_count != header.sample_count)
        return corrupt("raw, but samples and objects differ in number");
    if (header.sample_count >= kBlockIdsMax) return corrupt("sample_count is too large");
    if (header.block_id_end > kBlockIdsMax || header.block_id_end < header.block_count) {
        return corrupt("block_id_end is out of range");
    }
    if (header.block_bytes_max == 0 || header.block_bytes_max > kBlockBytesMax) {
        return corrupt("block_bytes_max is out of range");
    }
    if (header.samples_per_block_max == 0 || header.samples_per_block_max > header.sample_count) {
        return corrupt("samples_per_block_max is out of range");
    }
    const auto& largest = header.largest_blocks_bytes;
    if (largest[0] != header.block_bytes_max || largest[kLargestBlocksEntries - 1] != header.total_bytes) {
        return corrupt("largest_blocks_bytes does not fit total_bytes and block_bytes_max");
    }
    for (std::size_t i = 1; i < kLargestBlocksEntries; ++i) {
        // The 2^i largest blocks have at least the bytes of the 2^(i-1) largest, and at most twice as many.
        if (largest[i] < largest[i - 1] || largest[i] - largest[i - 1] > largest[i - 1]) {
            return corrupt("largest_blocks_bytes is not in order");
        }
    }
    return {};
}

}  // namespace

std::string_view name(Format format) {
    switch (format) {
        case Format::raw: return "raw";
        case Format::webdataset: return "webdataset";
        case Format::mds: return "mds";
        case Format::litdata: return "litdata";
        case Format::tfrecord: return "tfrecord";
        case Format::megatron: return "megatron";
        case Format::larder: return "larder";
        case Format::parquet: return "parquet";
        case Format::array_record: return "array_record";
    }
    return "unknown";
}

bool may_be_packed(Format samples) {
    return samples != Format::raw && samples != Format::larder && samples != Format::parquet &&
           std::ranges::find(kFormats, samples) != kFormats.end();
}

Result<Manifest> Manifest::open(const std::string& path) {
    auto file = open_file(path, O_RDONLY);
    if (!file) return std::unexpected(file.error());
    auto manifest = open(file->get());
    if (!manifest) return std::unexpected(manifest.error().within(path));
    return manifest;
}

Result<Manifest> Manifest::open(int fd) {
    struct stat status{};
    if (::fstat(fd, &status) != 0) return fail_errno(errno, "fstat of a manifest");
    const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
    if (!S_ISREG(status.st_mode) || file_bytes < kManifestHeaderBytes) return corrupt("shorter than its header");

    auto mapping = Mapping::of(fd, file_bytes, Mapping::Access::read_only);
    if (!mapping) return std::unexpected(mapping.error());
    Manifest manifest;
    manifest.mapping_ = std::move(*mapping);
    const std::byte* data = manifest.mapping_.data();
    manifest.header_ = reinterpret_cast<const ManifestHeader*>(data);
    const ManifestHeader& header = *manifest.header_;

    if (std::memcmp(header.magic, "LARDERMF", sizeof header.magic) != 0) {
        return fail(ErrorCode::corrupt, "not a manifest: it does not begin with LARDERMF");
    }
    if (header.layout < kManifestLayoutOldest || header.layout > kManifestLayout) {
        return fail(ErrorCode::unsupported, "manifest layout " + std::to_string(header.layout) +
                                                " is unknown here, this version reads up to " +
                                                std::to_string(kManifestLayout) + "; index the dataset again");
    }
    if (header_crc(data) != header.header_crc) return corrupt("the header's checksum does not match");
    if (header.file_bytes != file_bytes) {
        return corrupt("it should have " + std::to_string(header.file_bytes) + " bytes but has " +
                       std::to_string(file_bytes));
    }
    if (auto valid = check_values(header); !valid) return std::unexpected(valid.error());

    const bool raw = manifest.one_sample_per_object();
    const std::uint64_t stored_blocks = raw ? 0 : header.block_count;
    const std::uint64_t stored_samples = raw || manifest.samples_by_ordinal() ? 0 : header.sample_count;
    const std::uint64_t stored_checksums = manifest.has_checksums() ? header.block_count : 0;
    LayoutWalk walk(file_bytes);
    if (!walk.next(header.objects_offset, header.object_count, sizeof(ManifestObject)) ||
        !walk.next(header.blocks_offset, stored_blocks, sizeof(ManifestBlock)) ||
        !walk.next(header.samples_offset, stored_samples, sizeof(ManifestSample)) ||
        !walk.next(header.classes_offset, header.class_count, sizeof(ManifestClass)) ||
        (manifest.has_checksums() && !walk.next(header.checksums_offset, stored_checksums, sizeof(std::uint32_t))) ||
        !walk.next(header.names_offset, header.names_bytes, 1) || !walk.at_end()) {
        return corrupt("an array lies outside the file");
    }
    if (header.names_bytes > kNameEndMask) return corrupt("names are too long");
    if (!is_within(header.url_offset, header.url_bytes, header.names_bytes))
        return corrupt("the URL lies outside the names");
    if (!is_within(header.format_info_offset, header.format_info_bytes, header.names_bytes))
        return corrupt("the format info lies outside the names");
    if (!is_within(header.block_details_offset, header.block_details_bytes, header.names_bytes) ||
        (header.block_details_bytes > 0 && header.block_details_bytes / sizeof(std::uint64_t) < header.block_count)) {
        return corrupt("the block details lie outside the names");
    }

    manifest.objects_ = {reinterpret_cast<const ManifestObject*>(data + header.objects_offset), header.object_count};
    manifest.blocks_ = {reinterpret_cast<const ManifestBlock*>(data + header.blocks_offset), stored_blocks};
    manifest.samples_ = {reinterpret_cast<const ManifestSample*>(data + header.samples_offset), stored_samples};
    manifest.classes_ = {reinterpret_cast<const ManifestClass*>(data + header.classes_offset), header.class_count};
    manifest.checksums_ = {reinterpret_cast<const std::uint32_t*>(data + header.checksums_offset), stored_checksums};
    manifest.names_ = {reinterpret_cast<const char*>(data + header.names_offset), header.names_bytes};
    return manifest;
}

std::string_view Manifest::url() const {
    return names_.substr(header_->url_offset, header_->url_bytes);
}

std::span<const std::byte> Manifest::format_info() const {
    return std::as_bytes(std::span(names_.substr(header_->format_info_offset, header_->format_info_bytes)));
}

std::span<const std::byte> Manifest::block_details(std::uint32_t index) const {
    if (header_->block_details_bytes == 0) return {};
    const auto all =
        std::as_bytes(std::span(names_.substr(header_->block_details_offset, header_->block_details_bytes)));
    const std::size_t table_bytes = header_->block_count * sizeof(std::uint64_t);
    const auto ends = all.first(table_bytes);
    const auto texts = all.subspan(table_bytes);
    const std::uint64_t begin = index == 0 ? 0 : load<std::uint64_t>(ends, (index - 1) * sizeof(std::uint64_t));
    const auto end = load<std::uint64_t>(ends, index * sizeof(std::uint64_t));
    if (begin > end || end > texts.size()) return {};
    return texts.subspan(begin, end - begin);
}

std::string_view Manifest::path(std::uint64_t object) const {
    const std::uint64_t begin = object == 0 ? 0 : objects_[object - 1].name_end_and_label & kNameEndMask;
    const std::uint64_t end = objects_[object].name_end_and_label & kNameEndMask;
    if (begin > end || end > names_.size()) return {};
    return names_.substr(begin, end - begin);
}

Object Manifest::object(std::uint64_t index) const {
    const ManifestObject& stored = objects_[index];
    const auto label = static_cast<std::uint32_t>(stored.name_end_and_label >> 40);
    const std::uint32_t next_block = index + 1 < objects_.size() ? objects_[index + 1].first_block
                                                                 : static_cast<std::uint32_t>(header_->block_count);
    return Object{.path = path(index),
                  .size_bytes = stored.size_bytes,
                  .mtime_ns = stored.mtime_ns,
                  .label = label == kNoLabelStored ? kNoLabel : label,
                  .first_block = stored.first_block,
                  .block_count = next_block > stored.first_block ? next_block - stored.first_block : 0,
                  .first_block_id = stored.first_block_id};
}

Block Manifest::block(std::uint32_t index) const {
    if (one_sample_per_object()) {
        return Block{.object = index,
                     .length = block_bytes(index),
                     .offset = 0,
                     .first_sample = index,
                     .sample_count = 1,
                     .block_id = objects_[index].first_block_id,
                     .raw_bytes = 0};
    }
    const ManifestBlock& stored = blocks_[index];
    const std::uint64_t next_sample =
        index + 1u < blocks_.size() ? blocks_[index + 1u].first_sample : header_->sample_count;
    return Block{.object = stored.object,
                 .length = block_bytes(index),
                 .offset = stored.offset,
                 .first_sample = stored.first_sample,
                 .sample_count = next_sample > stored.first_sample
                                     ? static_cast<std::uint32_t>(next_sample - stored.first_sample)
                                     : 0,
                 .block_id = block_id(index),
                 .raw_bytes = std::min(stored.raw_bytes, kBlockBytesMax)};
}

std::uint32_t Manifest::block_bytes(std::uint32_t index) const {
    const std::uint64_t bytes = one_sample_per_object() ? objects_[index].size_bytes : blocks_[index].length;
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, header_->block_bytes_max));
}

std::uint32_t Manifest::block_id(std::uint32_t index) const {
    if (one_sample_per_object()) return objects_[index].first_block_id;
    const std::uint32_t object = blocks_[index].object;
    if (object >= objects_.size()) return 0;
    return objects_[object].first_block_id + (index - objects_[object].first_block);
}

SampleExtent Manifest::sample(std::uint64_t index) const {
    if (one_sample_per_object()) return {0, block_bytes(static_cast<std::uint32_t>(index))};
    if (samples_by_ordinal()) return {0, block_bytes(block_of_sample(index))};
    return {samples_[index].offset, samples_[index].length};
}

std::string_view Manifest::class_name(std::uint64_t index) const {
    const ManifestClass& stored = classes_[index];
    if (!is_within(stored.name_offset, stored.name_bytes, names_.size())) return {};
    return names_.substr(stored.name_offset, stored.name_bytes);
}

std::vector<std::string> Manifest::class_names() const {
    std::vector<std::string> names;
    names.reserve(header().class_count);
    for (std::uint64_t i = 0; i < header().class_count; ++i) names.emplace_back(class_name(i));
    return names;
}

// The numbers make a chance collision less likely.
std::uint64_t Manifest::content_hash() const {
    const std::uint32_t crc = header().content_crc != 0 ? header().content_crc : header().body_crc;
    return mix64(mix64(mix64(header().total_bytes) ^ header().sample_count) ^ crc);
}

std::uint32_t Manifest::block_of_sample(std::uint64_t sample) const {
    if (one_sample_per_object()) return static_cast<std::uint32_t>(sample);
    const auto next_block = std::ranges::upper_bound(blocks_, sample, {}, &ManifestBlock::first_sample);
    return next_block == blocks_.begin() ? 0 : static_cast<std::uint32_t>(next_block - blocks_.begin() - 1);
}

std::optional<std::uint64_t> Manifest::find_object(std::string_view wanted) const {
    std::uint64_t begin = 0;
    std::uint64_t end = objects_.size();
    while (begin < end) {
        const std::uint64_t middle = begin + (end - begin) / 2;
        if (path(middle) < wanted) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    if (begin < objects_.size() && path(begin) == wanted) return begin;
    return std::nullopt;
}

std::uint64_t Manifest::blocks_bytes_max(std::uint64_t count) const {
    if (count == 0) return 0;
    if (count >= header_->block_count) return header_->total_bytes;
    const auto power = static_cast<std::size_t>(std::bit_width(count) - 1);  // 2^power <= count < block_count < 2^32
    const auto& largest = header_->largest_blocks_bytes;
    // Each further block has at most the average size of the smaller half of the 2^power largest.
    const std::uint64_t half = power == 0 ? 1 : std::uint64_t{1} << (power - 1);
    const std::uint64_t half_bytes = power == 0 ? largest[0] : largest[power] - largest[power - 1];
    const std::uint64_t each_bytes = half_bytes / half + (half_bytes % half != 0);
    const std::uint64_t further_blocks = count - (std::uint64_t{1} << power);
    return std::min(largest[power + 1], largest[power] + further_blocks * each_bytes);
}

}  // namespace larder::protocol
