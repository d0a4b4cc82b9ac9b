#include "cache/dataset/block_checksums.h"

#include <algorithm>

#include "base/hash.h"
#include "cache/dataset/index_in_parallel.h"

namespace larder::cache {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kGroupsMax = 4096;  // groups as units of work: a dataset may have ten million objects

struct Extent {
    std::uint64_t offset;
    std::uint64_t length;
};

class Checksums {
public:
    Checksums(ObjectSource& source, DatasetContent& content, const protocol::Manifest* previous, IndexJournal* journal)
        : source_(source), content_(content), previous_(previous), journal_(journal) {
        if (content.blocks.empty()) {
            for (std::uint32_t i = 0; i < content.objects.size(); ++i) content.objects[i].first_block = i;
        }
        content.checksums.resize(std::max(content.blocks.size(), content.objects.size()));
    }

    // Fills the checksums of one object. `bytes_before`: the sum of the sizes of the earlier objects of its group.
    Result<void> fill(const DatasetContent::Object& object, std::uint64_t bytes_before,
                      const ObjectProgress& progress) {
        if (carry_over(object)) return {};
        const JournalKey key{.kind = JournalKind::checksums,
                             .path = content_.name(object),
                             .size_bytes = object.size_bytes,
                             .tag = object.mtime_ns,
                             .depends_on = hash_extents(object)};
        const auto summed = find_or_compute(journal_, key, [&] { return read(object, bytes_before, progress); });
        if (!summed) return std::unexpected(summed.error());
        if (summed->checksums.size() != object.block_count) {
            return fail(ErrorCode::internal, std::string(key.path) + ": its stored checksums are incomplete");
        }
        std::ranges::copy(summed->checksums, content_.checksums.begin() + object.first_block);
        return {};
    }

private:
    Result<IndexedObject> read(const DatasetContent::Object& object, std::uint64_t bytes_before,
                               const ObjectProgress& progress) {
        const std::string path(content_.name(object));
        IndexedObject summed;
        auto reader = source_.open(path);
        if (!reader) return std::unexpected(reader.error());
        if ((*reader)->size_bytes() != object.size_bytes || (*reader)->tag() != object.mtime_ns) {
            return fail(ErrorCode::changed, path + " changed while it was indexed");
        }
        for (std::uint32_t i = 0; i < object.block_count; ++i) {
            const Extent block = extent(object, i);
            std::uint32_t crc = 0;
            for (std::uint64_t at = 0; at < block.length;) {
                const std::size_t piece = std::min<std::uint64_t>(kPieceBytes, block.length - at);
                const auto bytes = (*reader)->read(block.offset + at, piece);
                if (!bytes) return std::unexpected(bytes.error().within(path));
                crc = crc32c(*bytes, crc);
                at += piece;
                const std::uint64_t done_bytes = bytes_before + std::min(object.size_bytes, block.offset + at);
                if (auto on = progress(done_bytes, 0); !on) return std::unexpected(on.error());
            }
            summed.checksums.push_back(crc);
        }
        return summed;
    }

    std::uint64_t hash_extents(const DatasetContent::Object& object) const {
        std::uint64_t hash = object.block_count;
        for (std::uint32_t i = 0; i < object.block_count; ++i) {
            const Extent block = extent(object, i);
            hash = hash_numbers({hash, block.offset, block.length});
        }
        return hash;
    }

    Extent extent(const DatasetContent::Object& object, std::uint32_t i) const {
        if (content_.blocks.empty()) return {0, object.size_bytes};
        const DatasetContent::Block& block = content_.blocks[object.first_block + i];
        return {block.offset, block.length};
    }

    bool carry_over(const DatasetContent::Object& object) {
        if (previous_ == nullptr || !previous_->has_checksums()) return false;
        const auto found = previous_->find_object(content_.name(object));
        if (!found) return false;
        const protocol::Object before = previous_->object(*found);
        if (!is_same_version(object, before)) return false;
        for (std::uint32_t i = 0; i < object.block_count; ++i) {
            const protocol::Block block = previous_->block(before.first_block + i);
            const Extent now = extent(object, i);
            if (block.offset != now.offset || block.length != now.length) return false;
            content_.checksums[object.first_block + i] = previous_->block_checksum(before.first_block + i);
        }
        return true;
    }

    ObjectSource& source_;
    DatasetContent& content_;
    const protocol::Manifest* previous_;
    IndexJournal* journal_;
};

}  // namespace

Result<void> add_checksums(ObjectSource& source, DatasetContent& content, const protocol::Manifest* previous,
                           const IndexProgressCallback& progress, std::stop_token stop, IndexJournal* journal) {
    Checksums checksums(source, content, previous, journal);
    const std::size_t count = content.objects.size();
    const std::size_t objects_per_group = (count + kGroupsMax - 1) / kGroupsMax;
    const auto report_in_objects = [&](const IndexProgress& now) {
        if (!progress) return;
        progress({.objects_done = std::min<std::uint64_t>(count, now.objects_done * objects_per_group),
                  .objects_total = count,
                  .bytes_done = now.bytes_done});
    };
    const auto done = index_in_parallel(
        (count + objects_per_group - 1) / objects_per_group,
        [&](std::size_t i, const ObjectProgress& step) -> Result<IndexedObject> {
            IndexedObject whole_group;
            for (std::size_t j = i * objects_per_group; j < std::min(count, (i + 1) * objects_per_group); ++j) {
                const DatasetContent::Object& object = content.objects[j];
                if (auto filled = checksums.fill(object, whole_group.size_bytes, step); !filled)
                    return std::unexpected(filled.error());
                whole_group.size_bytes += object.size_bytes;
            }
            return whole_group;
        },
        report_in_objects, std::move(stop));
    if (!done) return std::unexpected(done.error());
    return {};
}

}  // namespace larder::cache
