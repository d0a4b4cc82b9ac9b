// Manifest::check: validates every value of a manifest in one pass over its arrays.

#include <algorithm>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "cache/protocol/format_info.h"
#include "cache/protocol/manifest.h"

namespace larder::protocol {

bool is_plain_path(std::string_view path) {
    if (path.empty() || path.find('\0') != std::string_view::npos) return false;
    for (std::size_t begin = 0; begin <= path.size();) {
        const std::size_t end = std::min(path.find('/', begin), path.size());
        const std::string_view component = path.substr(begin, end - begin);
        if (component.empty() || component == "." || component == "..") return false;
        begin = end + 1;
    }
    return true;
}

class ManifestCheck {
public:
    explicit ManifestCheck(const Manifest& manifest) : manifest_(manifest), header_(manifest.header()) {}

    Result<void> run() {
        const auto body = std::span<const std::byte>(manifest_.mapping_.span()).subspan(kManifestHeaderBytes);
        if (crc32c(body) != header_.body_crc) return corrupt("the body's checksum does not match");
        for (std::uint64_t i = 0; i < header_.class_count; ++i) {
            if (manifest_.class_name(i).empty()) return corrupt("class " + std::to_string(i) + " has no name");
        }
        if (header_.format_info_bytes > 0) {
            if (auto info = parse_format_info(manifest_.format_info()); !info) return corrupt(info.error().message);
        }
        block_ids_.reserve(header_.object_count);
        for (std::uint64_t i = 0; i < header_.object_count; ++i) {
            if (auto valid = check_object(i); !valid) return valid;
        }
        if (next_block_ != header_.block_count || next_sample_ != header_.sample_count) {
            return corrupt("blocks or samples that belong to no object");
        }
        if (total_bytes_ != header_.total_bytes) return corrupt("total_bytes is not the sum of the blocks");
        if (block_bytes_max_ != header_.block_bytes_max) return corrupt("block_bytes_max is not the largest block");
        if (samples_per_block_max_ != header_.samples_per_block_max) return corrupt("samples_per_block_max is wrong");
        return check_block_ids();
    }

private:
    static std::unexpected<Error> corrupt(std::string what) {
        return fail(ErrorCode::corrupt, "manifest: " + std::move(what) + "; index the dataset again");
    }

    Result<void> check_object(std::uint64_t index) {
        const Object object = manifest_.object(index);
        const auto bad = [&](const char* what) { return corrupt("object " + std::to_string(index) + " " + what); };
        if (!is_plain_path(object.path)) return bad("has no valid path");
        if (index > 0 && object.path <= previous_path_) return bad("is not in the order of paths");
        previous_path_ = object.path;
        if (object.label != kNoLabel && object.label >= header_.class_count) return bad("has an unknown class");
        if (object.block_count == 0) return bad("has no block");
        if (manifest_.one_sample_per_object()) {
            if (object.size_bytes == 0 || object.size_bytes > kBlockBytesMax) return bad("has a size out of range");
            if (object.first_block != index) return bad("has the wrong block");
            add_block(static_cast<std::uint32_t>(object.size_bytes), 1);
        } else {
            if (object.first_block != next_block_) return bad("does not begin where the previous one ends");
            if (object.block_count > header_.block_count - next_block_) return bad("has blocks past the last");
            std::uint64_t offset = 0;
            for (std::uint32_t i = 0; i < object.block_count; ++i) {
                if (auto valid = check_block(object, index, object.first_block + i, offset); !valid) return valid;
            }
        }
        if (object.first_block_id + std::uint64_t{object.block_count} > header_.block_id_end) {
            return bad("has block ids out of range");
        }
        block_ids_.emplace_back(object.first_block_id, object.block_count);
        return {};
    }

    // `offset`: the end of the object's blocks so far.
    Result<void> check_block(const Object& object, std::uint64_t object_index, std::uint32_t index,
                             std::uint64_t& offset) {
        const ManifestBlock& stored = manifest_.blocks_[index];
        const Block block = manifest_.block(index);
        const auto bad = [&](const char* what) { return corrupt("block " + std::to_string(index) + " " + what); };
        if (stored.object != object_index) return bad("names another object");
        if (stored.length == 0 || stored.length > header_.block_bytes_max) return bad("has a length out of range");
        if (stored.offset < offset || stored.offset > object.size_bytes ||
            stored.length > object.size_bytes - stored.offset) {
            return bad("lies outside its object or overlaps the previous block");
        }
        if (stored.first_sample != next_sample_ || block.sample_count == 0) return bad("has no samples of its own");
        if (block.sample_count > header_.sample_count - next_sample_) return bad("has samples past the last");
        if (manifest_.samples_by_ordinal()) {
            if (manifest_.has_rows()) {
                if (stored.raw_bytes != 0) return bad("is compressed, although it has rows");
                if (manifest_.block_details(index).empty()) return bad("has no details");
            } else if (header_.format == Format::array_record) {
                if (stored.raw_bytes == 0) return bad("has no decoded size");
            } else if (stored.length != object.size_bytes) {
                return bad("is not its whole object");
            }
            if (stored.raw_bytes > kBlockBytesMax) return bad("is too large once decompressed");
        } else {
            if (stored.raw_bytes != 0 && !manifest_.has_compressed_blocks())
                return bad("is compressed, although the flags exclude it");
            if (stored.raw_bytes > kBlockBytesMax) return bad("is too large once decompressed");
            if (!samples_fit(stored, block.sample_count))
                return bad("has a sample that lies outside it or overlaps the previous sample");
        }
        offset = stored.offset + stored.length;
        add_block(stored.length, block.sample_count);
        return {};
    }

    bool samples_fit(const ManifestBlock& block, std::uint32_t sample_count) const {
        const std::uint32_t block_bytes = block.raw_bytes != 0 ? block.raw_bytes : block.length;
        std::uint64_t sample_end = 0;
        for (std::uint64_t i = 0; i < sample_count; ++i) {
            const ManifestSample& sample = manifest_.samples_[block.first_sample + i];
            if (sample.length == 0 || sample.offset < sample_end || sample.offset > block_bytes ||
                sample.length > block_bytes - sample.offset) {
                return false;
            }
            sample_end = std::uint64_t{sample.offset} + sample.length;
        }
        return true;
    }

    void add_block(std::uint32_t bytes, std::uint32_t samples) {
        ++next_block_;
        next_sample_ += samples;
        total_bytes_ += bytes;
        block_bytes_max_ = std::max(block_bytes_max_, bytes);
        samples_per_block_max_ = std::max(samples_per_block_max_, samples);
    }

    // Two blocks with one id would get each other's bytes from the cache.
    Result<void> check_block_ids() {
        if (!std::ranges::is_sorted(block_ids_)) std::ranges::sort(block_ids_);
        std::uint64_t end = 0;
        for (const auto& [first, count] : block_ids_) {
            if (first < end) return corrupt("block id " + std::to_string(first) + " is used twice");
            end = std::uint64_t{first} + count;
        }
        return {};
    }

    const Manifest& manifest_;
    const ManifestHeader& header_;
    std::string_view previous_path_;
    std::uint64_t next_block_ = 0;
    std::uint64_t next_sample_ = 0;
    std::uint64_t total_bytes_ = 0;
    std::uint32_t block_bytes_max_ = 0;
    std::uint32_t samples_per_block_max_ = 0;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> block_ids_;  // (first, count) of each object
};

Result<void> Manifest::check() const {
    return ManifestCheck(*this).run();
}

}  // namespace larder::protocol
