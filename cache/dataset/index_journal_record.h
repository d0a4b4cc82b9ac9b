#pragma once

// The file layout of the index journal (docs/formats-on-disk.md): a header that identifies the indexing run, then one
// record, which begins with its checksum, for each finished object. Pure functions over bytes. A scan ends at the first
// damaged record (cut short, or with a wrong checksum); a killed daemon or a bad disk may leave one. An intact
// record with invalid content is skipped. cache/dataset/index_journal.h manages the file.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cache/dataset/indexed_object.h"

namespace larder::cache {

inline constexpr char kJournalMagic[8] = {'L', 'A', 'R', 'D', 'E', 'R', 'I', 'J'};
inline constexpr std::uint32_t kJournalLayout = 1;  // raise it when the layout or an indexer's results change

enum class JournalKind : std::uint32_t {
    index = 1,      // blocks and samples, and checksums if the format has them
    checksums = 2,  // checksums of the object's blocks; one checksum for a raw object
};

// Identifies a result: the version of the object, and a hash of everything else the result depends on.
struct JournalKey {
    JournalKind kind = JournalKind::index;
    std::string_view path;
    std::uint64_t size_bytes = 0;
    std::int64_t tag = 0;  // see ObjectReader::tag
    std::uint64_t depends_on = 0;

    bool operator==(const JournalKey&) const = default;
};

struct JournalHeader {
    char magic[8];
    std::uint32_t layout;
    std::uint32_t crc;   // of the 32 bytes of the header, with `crc` = 0
    std::uint64_t what;  // a hash of the dataset and the request, see IndexJournal::open
    std::uint64_t reserved;
};
static_assert(sizeof(JournalHeader) == 32);

// The header of a record. The blocks, the samples, the checksums, IndexedObject::shared and the path follow, then zeros
// up to a multiple of 8 bytes.
struct JournalRecord {
    std::uint32_t crc;           // of the rest of the record
    std::uint32_t record_bytes;  // including this header and the zeros
    JournalKind kind;
    std::uint32_t path_bytes;
    std::uint64_t size_bytes;
    std::int64_t tag;
    std::uint64_t depends_on;
    std::uint32_t block_count;
    std::uint32_t sample_count;
    std::uint32_t checksum_count;
    std::uint32_t shared_bytes;
    std::uint64_t empty_samples;
    std::uint64_t left_over_bytes;
    std::uint64_t members_not_files;
    std::uint64_t members_without_key;
};
static_assert(sizeof(JournalRecord) == 88);

struct JournalBlock {
    std::uint64_t offset;
    std::uint32_t length;
    std::uint32_t sample_count;
    std::uint32_t raw_bytes;
    std::uint32_t reserved;
};
static_assert(sizeof(JournalBlock) == 24);

JournalHeader make_journal_header(std::uint64_t what);
// True if `file` begins with a valid header whose `what` equals the argument.
bool is_journal_of(std::span<const std::byte> file, std::uint64_t what);

// Returns an empty string if the object is too large for a record. Such an object is indexed again by the next run.
std::string encode_journal_record(const JournalKey& key, const IndexedObject& object);
// Returns the key of an intact record. The path points into `record`.
JournalKey journal_key(std::span<const std::byte> record);
// Returns the object, or nullopt if the content of the record is invalid.
std::optional<IndexedObject> decode_journal_record(std::span<const std::byte> record);

// Iterates over the records of a file, up to its end or to the first damaged record.
class JournalScan {
public:
    explicit JournalScan(std::span<const std::byte> file, std::size_t offset = sizeof(JournalHeader))
        : file_(file), offset_(offset) {}

    // Returns the next record; empty at the end.
    std::span<const std::byte> next();
    // The end of the records returned so far.
    std::size_t offset() const { return offset_; }

private:
    std::span<const std::byte> file_;
    std::size_t offset_;
};

}  // namespace larder::cache
