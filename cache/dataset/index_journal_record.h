#pragma once

// The journal of an indexing under way, byte for byte (see ARCHITECTURE.md): a header that says what is indexed, then a
// record for each object that is done, its checksum before it. Pure functions over bytes: what a killed daemon or a
// disk left behind is cut off where the first record does not hold, and a record that holds but makes no sense is
// passed over. cache/dataset/index_journal.h keeps the file.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cache/dataset/indexed_object.h"

namespace larder::cache {

inline constexpr char kJournalMagic[8] = {'L', 'A', 'R', 'D', 'E', 'R', 'I', 'J'};
inline constexpr std::uint32_t kJournalLayout = 1;  // also raised where an indexer finds other things than before

enum class JournalKind : std::uint32_t {
    index = 1,      // blocks and samples, and checksums where the format brings them along
    checksums = 2,  // of the object's blocks, or of a raw one
};

// Which result is meant: it holds for these bytes of the object and, by a hash, for whatever else it was made from.
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
    std::uint32_t crc;   // of these 32 bytes with this field 0
    std::uint64_t what;  // a hash of what is indexed and how
    std::uint64_t reserved;
};
static_assert(sizeof(JournalHeader) == 32);

// Then the blocks, samples and checksums, what the dataset's objects share, the path, and zeros up to 8 bytes.
struct JournalRecord {
    std::uint32_t crc;           // of all of the record after it
    std::uint32_t record_bytes;  // with this header and the zeros
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
// Whether a file begins with the header of just that.
bool is_journal_of(std::span<const std::byte> file, std::uint64_t what);

// Empty for an object too large for a record: it is indexed anew then.
std::string encode_journal_record(const JournalKey& key, const IndexedObject& object);
// The key of a record that holds; its path lies in `record`.
JournalKey journal_key(std::span<const std::byte> record);
// What it says of the object; nothing where that makes no sense.
std::optional<IndexedObject> decode_journal_record(std::span<const std::byte> record);

// The records of a file, one after the other, up to its end or the first that does not hold.
class JournalScan {
public:
    explicit JournalScan(std::span<const std::byte> file, std::size_t offset = sizeof(JournalHeader))
        : file_(file), offset_(offset) {}

    // Empty at the end.
    std::span<const std::byte> next();
    // Everything before it holds.
    std::size_t offset() const { return offset_; }

private:
    std::span<const std::byte> file_;
    std::size_t offset_;
};

}  // namespace larder::cache
