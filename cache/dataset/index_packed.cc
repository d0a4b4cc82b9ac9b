#include "cache/dataset/index_packed.h"

#include <mutex>

#include "cache/dataset/index_in_parallel.h"
#include "cache/protocol/little_endian.h"
#include "cache/protocol/packed.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using protocol::PackedIndex;

// The head of IndexedObject::shared of a packed file. The format info follows.
struct Shared {
    protocol::Format format{};
    std::uint32_t block_bytes = 0;
};

std::string shared_of(const PackedIndex& index) {
    const Shared shared{.format = index.sample_format, .block_bytes = index.block_bytes};
    return std::string(reinterpret_cast<const char*>(&shared), sizeof shared) + index.format_info;
}

// Format and format info, which all files of the dataset must share. `check_same` may be called from any thread.
class CommonFormat {
public:
    Result<void> check_same(std::string_view encoded, const std::string& path) {
        if (encoded.size() < sizeof(Shared)) return fail(ErrorCode::corrupt, path + ": its stored index is incomplete");
        const auto shared = protocol::load<Shared>(std::as_bytes(std::span(encoded)));
        const std::string_view format_info = encoded.substr(sizeof shared);
        const std::scoped_lock lock(mutex_);
        if (path_.empty()) {
            path_ = path;
            format_ = shared.format;
            format_info_ = format_info;
            block_bytes_ = shared.block_bytes;
        }
        if (format_ == shared.format && format_info_ == format_info) return {};
        return fail(ErrorCode::unsupported, path + " has other columns than " + path_ +
                                                " or samples of another format (" + std::string(name(shared.format)) +
                                                ", " + std::string(name(format_)) +
                                                "); all files of a dataset must have the same");
    }
    void copy_to(DatasetContent& content, BlockGoal& packed_as) const {
        content.sample_format = format_;
        content.format_info = format_info_;
        packed_as = block_bytes_ == 0 ? BlockGoal{BlockTarget::sample, 0} : BlockGoal{BlockTarget::bytes, block_bytes_};
    }

private:
    std::mutex mutex_;
    std::string path_;  // of the first file checked
    protocol::Format format_{};
    std::string format_info_;
    std::uint32_t block_bytes_ = 0;
};

Result<IndexedObject> index_file(ObjectReader& file, const std::string& path) {
    IndexedObject object{.path = path, .size_bytes = file.size_bytes(), .tag = file.tag()};
    auto index = protocol::read_packed_index(file);
    if (!index) return std::unexpected(index.error().within(path));
    object.shared = shared_of(*index);
    object.samples = std::move(index->samples);
    std::uint32_t first_sample = 0;
    for (const protocol::PackedBlock& block : index->blocks) {
        object.blocks.push_back({.offset = block.offset,
                                 .length = block.stored_bytes,
                                 .first_sample = first_sample,
                                 .sample_count = block.sample_count,
                                 .raw_bytes = block.raw_bytes});
        object.checksums.push_back(block.checksum);
        first_sample += block.sample_count;
    }
    return object;
}

}  // namespace

bool is_packed_name(std::string_view name) {
    return name.ends_with(".larder");
}

Result<void> index_packed(ObjectSource& source, DatasetContent& content, BlockGoal& packed_as,
                          std::vector<std::string>& notes, const IndexProgressCallback& progress, std::stop_token stop,
                          IndexJournal* journal) {
    const auto listing = source.list({}, stop);
    if (!listing) return std::unexpected(listing.error());
    std::vector<std::string> paths;
    std::uint64_t others = 0;
    for (const ObjectListing::Object& object : listing->objects) {
        const std::string_view path = listing->path(object);
        if (is_packed_name(path)) {
            paths.emplace_back(path);
        } else {
            ++others;
        }
    }
    CommonFormat common;
    auto objects = index_in_parallel(
        paths.size(),
        [&](std::size_t i, const ObjectProgress&) -> Result<IndexedObject> {
            auto file = source.open(paths[i]);
            if (!file) return std::unexpected(file.error());
            const JournalKey key{.path = paths[i], .size_bytes = (*file)->size_bytes(), .tag = (*file)->tag()};
            auto object = find_or_compute(journal, key, [&] { return index_file(**file, paths[i]); });
            if (!object) return object;
            if (auto same = common.check_same(object->shared, paths[i]); !same) return std::unexpected(same.error());
            return object;
        },
        progress, std::move(stop));
    if (!objects) return std::unexpected(objects.error());
    notes = listing->notes;
    if (others > 0) notes.push_back("left out " + std::to_string(others) + " file(s) that are not called .larder");
    common.copy_to(content, packed_as);
    return append_all(content, std::move(*objects), notes, source.description());
}

}  // namespace larder::cache
