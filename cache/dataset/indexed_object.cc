#include "cache/dataset/indexed_object.h"

#include <limits>

#include "base/units.h"

namespace larder::cache {

using protocol::BlockTarget;

namespace {

std::unexpected<Error> too_long(const std::string& what, std::uint64_t offset, std::uint64_t bytes,
                                const char* remedy = "") {
    return fail(ErrorCode::unsupported, "at offset " + std::to_string(offset) + ": " + what + " has " +
                                            format_bytes(bytes) + "; a block has at most " +
                                            format_bytes(protocol::kBlockBytesMax) + remedy);
}

// Appends one object and frees its memory. Leaves out an object without samples.
void append(DatasetContent& content, IndexedObject&& taken) {
    IndexedObject object = std::move(taken);
    if (object.blocks.empty()) return;
    content.add_object(object.path, object.size_bytes, object.tag, protocol::kNoLabel);
    content.objects.back().first_block = static_cast<std::uint32_t>(content.blocks.size());
    content.objects.back().block_count = static_cast<std::uint32_t>(object.blocks.size());
    const auto first_sample = static_cast<std::uint32_t>(content.samples.size());
    for (DatasetContent::Block block : object.blocks) {
        block.first_sample += first_sample;
        content.blocks.push_back(block);
    }
    content.checksums.insert(content.checksums.end(), object.checksums.begin(), object.checksums.end());
    content.block_details.insert(content.block_details.end(), std::move_iterator(object.block_details.begin()),
                                 std::move_iterator(object.block_details.end()));
    content.samples.insert(content.samples.end(), object.samples.begin(), object.samples.end());
}

}  // namespace

Result<void> BlockGrouper::add(std::uint64_t offset, std::uint64_t bytes) {
    if (bytes == 0) {
        ++object_.empty_samples;
        return {};
    }
    if (bytes > protocol::kBlockBytesMax) return too_long("the sample that begins here", offset, bytes);
    const std::uint64_t end = offset + bytes;
    const bool joins_last_block =
        !object_.blocks.empty() && goal_.target != BlockTarget::sample &&
        (goal_.target == BlockTarget::object || end - object_.blocks.back().offset <= goal_.bytes);
    if (!joins_last_block) {
        object_.blocks.push_back({.offset = offset,
                                  .length = 0,
                                  .first_sample = static_cast<std::uint32_t>(object_.samples.size()),
                                  .sample_count = 0});
    }
    DatasetContent::Block& block = object_.blocks.back();
    if (end - block.offset > protocol::kBlockBytesMax) {
        return too_long("the whole file as one block", block.offset, end - block.offset,
                        "; choose a block size instead");
    }
    block.length = static_cast<std::uint32_t>(end - block.offset);
    ++block.sample_count;
    object_.samples.push_back({static_cast<std::uint32_t>(offset - block.offset), static_cast<std::uint32_t>(bytes)});
    return {};
}

Result<void> make_one_block(IndexedObject& object, std::uint64_t sample_count, std::uint64_t raw_bytes) {
    if (sample_count == 0) return {};
    if (object.size_bytes > protocol::kBlockBytesMax) return too_long("the whole file", 0, object.size_bytes);
    if (raw_bytes > protocol::kBlockBytesMax) {
        return fail(ErrorCode::unsupported, "decompressed it has " + format_bytes(raw_bytes) + "; at most " +
                                                format_bytes(protocol::kBlockBytesMax) + " are read");
    }
    if (sample_count > std::numeric_limits<std::uint32_t>::max()) {
        return fail(ErrorCode::unsupported, std::to_string(sample_count) + " samples in one file are too many");
    }
    object.blocks.push_back({.offset = 0,
                             .length = static_cast<std::uint32_t>(object.size_bytes),
                             .first_sample = 0,
                             .sample_count = static_cast<std::uint32_t>(sample_count),
                             .raw_bytes = static_cast<std::uint32_t>(raw_bytes)});
    return {};
}

Result<void> append_all(DatasetContent& content, std::vector<IndexedObject> objects, std::vector<std::string>& notes,
                        const std::string& what) {
    std::uint64_t without_samples = 0;
    std::uint64_t empty_samples = 0;
    std::uint64_t left_over_bytes = 0;
    for (IndexedObject& object : objects) {
        without_samples += object.blocks.empty();
        empty_samples += object.empty_samples;
        left_over_bytes += object.left_over_bytes;
        append(content, std::move(object));
    }
    const auto add_note = [&](std::uint64_t count, const char* left_out) {
        if (count > 0) notes.push_back("left out " + std::to_string(count) + " " + left_out);
    };
    add_note(empty_samples, "empty sample(s)");
    add_note(without_samples, "file(s) without samples");
    add_note(left_over_bytes, "byte(s) at the ends of files, too few for a window of tokens");
    if (!content.objects.empty()) return {};
    std::string why = what + " has no samples";
    for (const auto& note : notes) why += "; " + note;
    return fail(ErrorCode::invalid_argument, why);
}

}  // namespace larder::cache
