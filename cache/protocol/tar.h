#pragma once

// Tar archives as training shards use them: ustar, PAX, GNU long names, base-256 sizes. TarReader walks the members of
// an archive, or of any run of whole members, and gives the extent of each member's bytes; it reads only headers.
// split_sample and sample_key follow WebDataset: consecutive members with one key form a sample. The key is the path up
// to the first dot of its last component; the rest after that dot, in lower case, names the field.
//
// The indexer uses it over files, the client over the bytes of one sample. Nothing here allocates per member except to
// grow reused strings. Errors name the offset and the reason. A reader belongs to one thread.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/protocol/byte_source.h"

namespace larder::protocol {

inline constexpr std::size_t kTarBlockBytes = 512;

struct TarMember {
    std::uint64_t offset;  // of the first of its headers
    std::uint64_t data_offset;
    std::uint64_t data_bytes;
    std::uint64_t end_offset;  // after the padding
    char type;                 // tar's type flag; '0' for a file
    std::string_view prefix;   // the name is prefix/name, or name where prefix is empty; valid until the next call,
    std::string_view name;     // or as long as the bytes when reading a span

    bool is_file() const { return type == '0'; }
};

class TarReader {
public:
    explicit TarReader(ByteSource& source) : source_(&source), size_bytes_(source.size_bytes()) {}
    explicit TarReader(std::span<const std::byte> bytes) : bytes_(bytes), size_bytes_(bytes.size()) {}

    // The next member of any type; nullopt at the end of the archive.
    Result<std::optional<TarMember>> next();

private:
    struct Attributes {
        std::optional<std::uint64_t> size_bytes;
        std::optional<std::string_view> path;
    };

    Result<std::span<const std::byte>> read(std::uint64_t offset, std::uint64_t bytes, const char* what);
    Result<void> read_extension(char type, std::uint64_t header_offset, std::uint64_t data_bytes,
                                Attributes& attributes);
    Result<void> read_pax_records(std::string_view records, bool global, std::uint64_t header_offset,
                                  Attributes& attributes);
    Result<TarMember> read_member(std::span<const std::byte> header, std::uint64_t first_offset,
                                  const Attributes& attributes);
    std::string_view keep_text(std::string_view text);

    ByteSource* source_ = nullptr;
    std::span<const std::byte> bytes_;
    std::uint64_t size_bytes_;
    std::uint64_t position_ = 0;
    std::string kept_text_;
};

// The two parts of a member's name in WebDataset. Views into the given name.
struct SampleKey {
    std::string_view stem;    // the key, without the prefix
    std::string_view suffix;  // not yet in lower case
};

// nullopt for names that belong to no sample: without a dot, with nothing before it (".hidden"), or WebDataset's
// metadata ("__name__", "__name__/...").
std::optional<SampleKey> sample_key(const TarMember& member);

struct TarField {
    std::string_view name;
    std::span<const std::byte> bytes;
};

// Splits the sample in `bytes`, a run of whole members: appends its fields and returns its key. Views point into
// `bytes` if the text occurs there unchanged, else into strings appended to `texts`.
Result<std::string_view> split_sample(std::span<const std::byte> bytes, std::vector<TarField>& fields,
                                      std::deque<std::string>& texts);

}  // namespace larder::protocol
