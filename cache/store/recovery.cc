#include "cache/store/recovery.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "cache/protocol/record.h"
#include "cache/store/disk_probe.h"
#include "cache/store/index.h"
#include "cache/store/segment_header.h"
#include "cache/store/segment_scan.h"

namespace larder::cache {
namespace {

// Record offsets are kept in 32 bits, in units of kOffsetUnitBytes.
constexpr std::uint64_t kSizeBytesMax = kOffsetUnitBytes << 32;
// The index takes this many changes between two flushes without losing any.
constexpr std::size_t kPostsPerFlush = 65536;

std::optional<std::uint32_t> segment_id_of(const std::string& file_name) {
    std::uint32_t id = 0;
    const auto [end, error] = std::from_chars(file_name.data(), file_name.data() + file_name.size(), id, 16);
    if (error != std::errc{} || segment_path("", id) != "/" + file_name) return std::nullopt;
    return id;
}

class Recovery {
public:
    Recovery(std::uint64_t dataset_id, const std::string& directory, Index* index)
        : dataset_id_(dataset_id), directory_(directory), index_(index) {}

    Recovered run() {
        std::vector<StoredSegment> known = load();
        std::vector<bool> has_file(known.size());
        auto names = list_files();
        if (!names) {
            // The rows stay for a start that can read the directory.
            note_problem(names.error());
            return std::move(recovered_);
        }
        if (!names->empty()) {
            // A disk that cannot be written is read without direct I/O, whose alignment is unknown.
            if (auto probe = probe_disk(directory_)) {
                probe_ = *probe;
            } else {
                note_problem(probe.error());
            }
        }
        for (const std::string& name : *names) {
            const auto id = segment_id_of(name);
            if (!id) {
                remove(directory_ + "/" + name, "it is not a segment");
                continue;
            }
            if (index_ != nullptr) index_->reserve_segment_ids_below(*id + 1);
            const auto position = std::ranges::lower_bound(known, *id, {}, &StoredSegment::id);
            StoredSegment* entries = position != known.end() && position->id == *id ? &*position : nullptr;
            if (entries != nullptr) has_file[static_cast<std::size_t>(position - known.begin())] = true;
            if (auto recovered = recover_file(*id, entries); !recovered) note_problem(recovered.error());
        }
        for (std::size_t i = 0; i < known.size(); i++) {
            if (has_file[i]) continue;
            recovered_.report.segments_missing++;
            index_->remove_segment(dataset_id_, known[i].id);
        }
        return std::move(recovered_);
    }

private:
    std::vector<StoredSegment> load() {
        if (index_ == nullptr) return {};
        auto loaded = index_->load(dataset_id_);
        if (loaded) return std::move(*loaded);
        recovered_.report.index_problem = loaded.error().message;
        index_->remove_dataset(dataset_id_);
        return {};
    }

    // The file names in ascending order, which is the order of segment ids.
    Result<std::vector<std::string>> list_files() const {
        std::vector<std::string> names;
        std::error_code error;
        std::filesystem::directory_iterator entry(directory_, error);
        if (error == std::errc::no_such_file_or_directory) return names;
        for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
            if (std::error_code ignored; entry->is_regular_file(ignored)) names.push_back(entry->path().filename());
        }
        if (error) return fail_errno(error.value(), "list the segments in " + directory_);
        std::ranges::sort(names);
        return names;
    }

    void remove(const std::string& path, const std::string& reason) {
        if (::unlink(path.c_str()) == 0 || errno == ENOENT) {
            recovered_.report.removed.push_back(path + ": " + reason);
        } else {
            note_problem(errno_error(errno, "remove " + path + ", because " + reason));
        }
    }

    void note_problem(Error problem) { recovered_.report.problems.push_back(std::move(problem)); }

    // Fails if the file cannot be read. The file and its rows stay as they are.
    Result<void> recover_file(std::uint32_t id, StoredSegment* entries) {
        RecoveredSegment segment;
        segment.path = segment_path(directory_, id);
        auto file = open_file(segment.path, O_RDONLY);
        if (!file) return std::unexpected(file.error());
        struct stat status{};
        if (::fstat(file->get(), &status) != 0) return fail_errno(errno, "stat " + segment.path);
        const auto file_bytes = static_cast<std::uint64_t>(status.st_size);

        const auto read = read_header(file->get());
        if (!read) return std::unexpected(read.error().within("read " + segment.path));
        const std::optional<SegmentHeader>& header = *read;
        if (!header || header->dataset_id != dataset_id_ || header->segment != id ||
            header->size_bytes > kSizeBytesMax) {
            remove(segment.path, !header ? "its header is damaged" : "its header names another segment");
            if (index_ != nullptr && entries != nullptr) index_->remove_segment(dataset_id_, id);
            return {};
        }
        segment.id = id;
        segment.alignment = header->alignment;
        segment.size_bytes = header->size_bytes;
        std::vector<Extent> dropped;
        const bool known =
            entries != nullptr && entries->alignment == segment.alignment && entries->size_bytes == segment.size_bytes;
        if (known) {
            segment.sealed = entries->sealed;
            segment.blocks = std::move(entries->blocks);
            // A later record may lie where a dropped one was, so they are not checked against each other.
            dropped = take_dropped_blocks(segment);
            drop_misplaced_blocks(segment, file_bytes);
        } else {
            recovered_.report.segments_scanned++;
        }
        std::vector<StoredBlock> found;
        if (!segment.sealed) found = scan_unindexed(file->get(), *header, segment, std::move(dropped), file_bytes);
        ::posix_fadvise(file->get(), 0, 0, POSIX_FADV_DONTNEED);
        if (segment.blocks.empty() && found.empty()) {
            remove(segment.path, "it has no block");
            if (index_ != nullptr && entries != nullptr) index_->remove_segment(dataset_id_, id);
            return {};
        }
        post_to_index(segment, known, found);
        const std::size_t indexed_count = segment.blocks.size();
        segment.blocks.insert(segment.blocks.end(), found.begin(), found.end());
        std::ranges::sort(segment.blocks, {}, &StoredBlock::offset_units);
        return open_segment(std::move(segment), indexed_count);
    }

    // Nothing if the header is damaged or cut off. Fails if it cannot be read.
    static Result<std::optional<SegmentHeader>> read_header(int fd) {
        std::array<std::byte, sizeof(SegmentHeader)> bytes;
        const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), 0);
        if (got < 0) return fail_errno(errno, "its header");
        if (got != static_cast<ssize_t>(bytes.size())) return std::optional<SegmentHeader>();
        return read_segment_header(bytes);
    }

    // A part of a segment.
    struct Extent {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
    };

    static std::size_t retired_count(const RecoveredSegment& segment) {
        return static_cast<std::size_t>(std::ranges::count_if(segment.blocks, &StoredBlock::is_retired));
    }

    static Extent extent_of(const RecoveredSegment& segment, const StoredBlock& block) {
        return {block.offset(), block.offset() + protocol::record_bytes(block.payload_bytes, segment.alignment)};
    }

    // Returns where the records of dropped blocks lie.
    static std::vector<Extent> take_dropped_blocks(RecoveredSegment& segment) {
        std::vector<Extent> dropped;
        std::erase_if(segment.blocks, [&](const StoredBlock& block) {
            if (block.is_dropped()) dropped.push_back(extent_of(segment, block));
            return block.is_dropped();
        });
        return dropped;
    }

    // Returns the records that lie between and behind those that the index knows: writes end in any order, and the
    // index learns of them later.
    static std::vector<StoredBlock> scan_unindexed(int fd, const SegmentHeader& header, const RecoveredSegment& segment,
                                                   std::vector<Extent> taken, std::uint64_t file_bytes) {
        for (const StoredBlock& block : segment.blocks) taken.push_back(extent_of(segment, block));
        std::ranges::sort(taken, {}, &Extent::begin);
        std::vector<StoredBlock> found;
        std::uint64_t end = kSegmentHeaderBytes;
        for (const Extent& extent : taken) {
            if (extent.begin > end) scan_records(fd, header, end, std::min(extent.begin, file_bytes), found);
            end = std::max(end, extent.end);
        }
        scan_records(fd, header, end, file_bytes, found);
        return found;
    }

    void drop_misplaced_blocks(RecoveredSegment& segment, std::uint64_t file_bytes) {
        const std::uint64_t bytes_max = std::min(file_bytes, segment.size_bytes);
        std::uint64_t end = kSegmentHeaderBytes;
        const auto misplaced = [&](const StoredBlock& block) {
            const std::uint64_t bytes = protocol::record_bytes(block.payload_bytes, segment.alignment);
            if (block.offset() >= end && block.offset() % segment.alignment == 0 && block.offset() <= bytes_max &&
                bytes <= bytes_max - block.offset()) {
                end = block.offset() + bytes;
                return false;
            }
            recovered_.report.entries_dropped++;
            index_->remove_block(dataset_id_, segment.id, block.offset_units);
            return true;
        };
        // Check blocks in order, because each is checked against the end of the one before.
        std::size_t kept_count = 0;
        for (std::size_t i = 0; i < segment.blocks.size(); i++) {
            if (!misplaced(segment.blocks[i])) segment.blocks[kept_count++] = segment.blocks[i];
        }
        segment.blocks.resize(kept_count);
    }

    void post_to_index(const RecoveredSegment& segment, bool known, const std::vector<StoredBlock>& found) {
        if (index_ == nullptr) return;
        if (!known) {
            index_->remove_segment(dataset_id_, segment.id);
            index_->put_segment(dataset_id_, segment.id, segment.size_bytes, segment.alignment, segment.sealed);
        }
        for (const StoredBlock& block : found) {
            index_->put_block(dataset_id_, segment.id, block);
            if (++posts_ % kPostsPerFlush == 0) index_->flush();
        }
    }

    Result<void> open_segment(RecoveredSegment segment, std::size_t indexed_count) {
        const bool direct = probe_.direct && segment.alignment % probe_.alignment == 0;
        const int flags = direct ? O_DIRECT : 0;
        auto file = open_file(segment.path, O_RDWR | flags);
        if (!file) {
            // The index keeps the segment unsealed: a later start may write to it again.
            note_problem(file.error());
            segment.sealed = true;
            file = open_file(segment.path, O_RDONLY | flags);
        }
        if (!file) return std::unexpected(file.error());
        segment.fd = std::move(*file);
        recovered_.report.segments++;
        recovered_.report.blocks += segment.blocks.size() - retired_count(segment);
        recovered_.report.blocks_scanned += segment.blocks.size() - indexed_count;
        recovered_.segments.push_back(std::move(segment));
        return {};
    }

    std::uint64_t dataset_id_;
    std::string directory_;
    Index* index_;
    DiskProbe probe_;
    Recovered recovered_;
    std::size_t posts_ = 0;
};

}  // namespace

Recovered recover_segments(std::uint64_t dataset_id, const std::string& segment_directory, Index* index) {
    return Recovery(dataset_id, segment_directory, index).run();
}

}  // namespace larder::cache
