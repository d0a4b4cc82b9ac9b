#include "cache/protocol/tar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "cache/protocol/claims.h"

namespace larder::protocol {
namespace {

constexpr std::uint64_t kExtensionBytesMax = std::uint64_t{1} << 20;

// The fields of a header block that matter here, as [offset, bytes).
struct HeaderField {
    std::size_t offset;
    std::size_t bytes;
};
constexpr HeaderField kName{0, 100};
constexpr HeaderField kSize{124, 12};
constexpr HeaderField kChecksum{148, 8};
constexpr std::size_t kTypeOffset = 156;
constexpr HeaderField kMagicField{257, 6};
constexpr HeaderField kPrefix{345, 155};

std::unexpected<Error> corrupt(std::uint64_t offset, std::string_view what) {
    return fail(ErrorCode::corrupt, "at offset " + std::to_string(offset) + ": " + std::string(what));
}

std::unexpected<Error> unsupported(std::uint64_t offset, std::string_view what) {
    return fail(ErrorCode::unsupported, "at offset " + std::to_string(offset) + ": " + std::string(what));
}

std::string_view field(std::span<const std::byte> header, HeaderField which) {
    return {reinterpret_cast<const char*>(header.data()) + which.offset, which.bytes};
}

std::string_view up_to_nul(std::string_view text) {
    return text.substr(0, text.find('\0'));
}

// Parses octal digits between spaces and NULs, or base-256 after a byte 0x80. nullopt if the text is neither or the
// number is too large.
std::optional<std::uint64_t> parse_field_number(std::string_view text) {
    const auto first = static_cast<unsigned char>(text.front());
    std::uint64_t value = 0;
    if (first & 0x80) {
        if (first != 0x80) return std::nullopt;  // negative, or above 2^87
        for (const char digit : text.substr(1)) {
            if (value >> 55 != 0) return std::nullopt;
            value = value << 8 | static_cast<unsigned char>(digit);
        }
        return value;
    }
    const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
    const std::size_t end = std::min(text.find_first_of(std::string_view(" \0", 2), begin), text.size());
    if (begin == end) return 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, value, 8);
    if (error != std::errc{} || stop != text.data() + end) return std::nullopt;
    return value;
}

bool is_zero(std::span<const std::byte> block) {
    return std::ranges::all_of(block, [](std::byte byte) { return byte == std::byte{0}; });
}

// The sum of a header's bytes. Adds eight bytes at a time, in four lanes of 16 bits; 64 additions of 2 x 255 cannot
// overflow a lane.
std::uint32_t sum_of_bytes(std::span<const std::byte> header) {
    constexpr std::uint64_t kEvenBytes = 0x00ff00ff00ff00ff;
    std::uint64_t lanes = 0;
    for (std::size_t at = 0; at < kTarBlockBytes; at += sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, header.data() + at, sizeof word);
        lanes += (word & kEvenBytes) + (word >> 8 & kEvenBytes);
    }
    return static_cast<std::uint32_t>((lanes & 0xffff) + (lanes >> 16 & 0xffff) + (lanes >> 32 & 0xffff) +
                                      (lanes >> 48));
}

bool checksum_matches(std::span<const std::byte> header) {
    const auto stored = parse_field_number(field(header, kChecksum));
    if (!stored) return false;
    // The checksum counts its own field as spaces.
    std::uint32_t sum = sum_of_bytes(header);
    for (const char c : field(header, kChecksum)) sum += std::uint32_t{' '} - static_cast<unsigned char>(c);
    if (sum == *stored) return true;
    // Old programs summed signed bytes.
    std::uint32_t high = 0;
    for (const std::byte byte : header) high += static_cast<std::uint32_t>(byte) >> 7;
    for (const char c : field(header, kChecksum))
        high -= static_cast<std::uint32_t>(static_cast<unsigned char>(c)) >> 7;
    return sum - 256 * high == *stored;
}

// The compression of a file that is not a tar, by its first bytes; empty if unknown.
std::string_view detect_compression(std::span<const std::byte> head) {
    const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
    if (text.starts_with("\x1f\x8b")) return "gzip";
    if (text.starts_with("\xfd"
                         "7zXZ")) {
        return "xz";
    }
    if (text.starts_with("BZh")) return "bzip2";
    if (text.starts_with("\x28\xb5\x2f\xfd")) return "zstd";
    return {};
}

// The error for a file that is not a tar: names its compression if known, else the problem.
std::unexpected<Error> not_a_tar_error(std::span<const std::byte> head, const char* problem) {
    const std::string_view method = detect_compression(head);
    if (method.empty()) return corrupt(0, problem);
    return unsupported(0, "compressed tar (" + std::string(method) +
                              ") is not supported, because its samples cannot be read on their own: unpack it");
}

std::uint64_t padded(std::uint64_t bytes) {
    return (bytes + kTarBlockBytes - 1) / kTarBlockBytes * kTarBlockBytes;
}

bool is_extension(char type) {
    return type == 'x' || type == 'X' || type == 'g' || type == 'L' || type == 'K';
}

// Links, devices, directories and pipes have no data, whatever their size field says.
bool has_no_data(char type) {
    return type >= '1' && type <= '6';
}

bool has_upper_case(std::string_view text) {
    return std::ranges::any_of(text, [](char c) { return c >= 'A' && c <= 'Z'; });
}

}  // namespace

Result<std::span<const std::byte>> TarReader::read(std::uint64_t offset, std::uint64_t bytes, const char* what) {
    if (!lies_within(offset, bytes, size_bytes_)) {
        return corrupt(offset, std::string("the archive ends within ") + what + " (truncated)");
    }
    if (source_ == nullptr) return bytes_.subspan(offset, bytes);
    return source_->read(offset, bytes);
}

// Returns a view that is valid until the next call: of the span's own bytes, or of a copy.
std::string_view TarReader::keep_text(std::string_view text) {
    if (source_ == nullptr) return text;
    kept_text_ = text;
    return kept_text_;
}

Result<std::optional<TarMember>> TarReader::next() {
    Attributes attributes;
    const std::uint64_t first_offset = position_;
    for (;;) {
        // Some writers omit the two zero blocks at the end.
        if (position_ == size_bytes_ && position_ == first_offset) {
            if (position_ == 0) return corrupt(0, "the file is empty");
            return std::nullopt;
        }
        const std::uint64_t offset = position_;
        if (offset == 0 && size_bytes_ < kTarBlockBytes) {
            const auto head = read(0, size_bytes_, "a header");
            if (!head) return std::unexpected(head.error());
            return not_a_tar_error(*head, "shorter than a tar header (truncated, or not a tar)");
        }
        auto header = read(offset, kTarBlockBytes, "a header");
        if (!header) return std::unexpected(header.error());
        if (!checksum_matches(*header)) {
            if (is_zero(*header)) {
                if (offset != first_offset) return corrupt(offset, "no member follows a long name or PAX header");
                position_ = size_bytes_;
                return std::nullopt;
            }
            if (offset == 0) return not_a_tar_error(*header, "not a tar: the header's checksum does not match");
            return corrupt(offset, "the header's checksum does not match");
        }
        const char type = field(*header, {kTypeOffset, 1}).front();
        if (!is_extension(type)) {
            auto found = read_member(*header, first_offset, attributes);
            if (!found) return std::unexpected(found.error());
            position_ = found->end_offset;
            return *found;
        }
        const auto data_bytes = parse_field_number(field(*header, kSize));
        if (!data_bytes || *data_bytes > kExtensionBytesMax)
            return corrupt(offset, "a long name or PAX header has an impossible size");
        if (auto extended = read_extension(type, offset, *data_bytes, attributes); !extended)
            return std::unexpected(extended.error());
        position_ = offset + kTarBlockBytes + padded(*data_bytes);
    }
}

Result<void> TarReader::read_extension(char type, std::uint64_t header_offset, std::uint64_t data_bytes,
                                       Attributes& attributes) {
    if (type == 'K') return {};  // a link's target
    auto data = read(header_offset + kTarBlockBytes, data_bytes, "a long name or PAX header");
    if (!data) return std::unexpected(data.error());
    const std::string_view text(reinterpret_cast<const char*>(data->data()), data->size());
    if (type == 'L') {
        attributes.path = keep_text(up_to_nul(text));
        return {};
    }
    return read_pax_records(text, type == 'g', header_offset, attributes);
}

// Parses records of the form "<length of the record> <key>=<value>\n".
Result<void> TarReader::read_pax_records(std::string_view records, bool global, std::uint64_t header_offset,
                                         Attributes& attributes) {
    while (!records.empty() && records.front() != '\0') {
        std::size_t length = 0;
        const auto [stop, error] = std::from_chars(records.data(), records.data() + records.size(), length);
        const auto digits = static_cast<std::size_t>(stop - records.data());
        if (error != std::errc{} || length > records.size() || length < digits + 3 || *stop != ' ' ||
            records[length - 1] != '\n') {
            return corrupt(header_offset, "a PAX header has a malformed record");
        }
        const std::string_view record = records.substr(digits + 1, length - digits - 2);
        const std::size_t equals = record.find('=');
        if (equals == std::string_view::npos) return corrupt(header_offset, "a PAX header has a malformed record");
        const std::string_view key = record.substr(0, equals);
        const std::string_view value = record.substr(equals + 1);
        if (key.starts_with("GNU.sparse.")) return unsupported(header_offset, "sparse members are not supported");
        if (global && (key == "path" || key == "size")) {
            return unsupported(header_offset,
                               "a global PAX header that sets " + std::string(key) + " is not supported");
        }
        if (key == "path") {
            attributes.path = keep_text(value);
        } else if (key == "size") {
            std::uint64_t bytes = 0;
            const auto [end, size_error] = std::from_chars(value.data(), value.data() + value.size(), bytes);
            if (size_error != std::errc{} || end != value.data() + value.size())
                return corrupt(header_offset, "a PAX header has a malformed size");
            attributes.size_bytes = bytes;
        }
        records.remove_prefix(length);
    }
    return {};
}

Result<TarMember> TarReader::read_member(std::span<const std::byte> header, std::uint64_t first_offset,
                                         const Attributes& attributes) {
    TarMember member{.offset = first_offset, .data_offset = position_ + kTarBlockBytes};
    member.type = field(header, {kTypeOffset, 1}).front();
    if (member.type == '\0' || member.type == '7') member.type = '0';  // old tar's regular file; a contiguous file
    if (attributes.path) {
        member.name = *attributes.path;
    } else {
        member.name = up_to_nul(field(header, kName));
        // GNU's own format uses the prefix field for other data.
        if (field(header, kMagicField) == std::string_view("ustar\0", 6))
            member.prefix = up_to_nul(field(header, kPrefix));
    }
    if (member.type == '0' && member.name.ends_with('/')) member.type = '5';  // old tar's directory
    if (member.type == 'S') return unsupported(position_, "sparse members are not supported");

    const auto size_bytes = attributes.size_bytes ? attributes.size_bytes : parse_field_number(field(header, kSize));
    if (!size_bytes) return corrupt(position_, "a member has an impossible size");
    member.data_bytes = has_no_data(member.type) ? 0 : *size_bytes;
    // Check the bound before padding, so that no sum overflows.
    if (!lies_within(member.data_offset, member.data_bytes, size_bytes_) ||
        !lies_within(member.data_offset, padded(member.data_bytes), size_bytes_)) {
        return corrupt(position_, "the archive ends within the member " + std::string(member.name.substr(0, 200)) +
                                      " (truncated)");
    }
    member.end_offset = member.data_offset + padded(member.data_bytes);
    return member;
}

std::optional<SampleKey> sample_key(const TarMember& member) {
    const std::string_view top = member.prefix.empty() ? member.name : member.prefix;
    const std::string_view first = top.substr(0, top.find('/'));
    if (first.size() >= 4 && first.starts_with("__") && first.ends_with("__")) return std::nullopt;

    const std::size_t slash = member.name.rfind('/');
    const std::size_t base = slash == std::string_view::npos ? 0 : slash + 1;
    const std::size_t dot = member.name.find('.', base);
    if (dot == std::string_view::npos || dot == base) return std::nullopt;
    return SampleKey{member.name.substr(0, dot), member.name.substr(dot + 1)};
}

Result<std::string_view> split_sample(std::span<const std::byte> bytes, std::vector<TarField>& fields,
                                      std::deque<std::string>& texts) {
    TarReader reader(bytes);
    std::optional<std::string_view> sample;
    for (;;) {
        auto next = reader.next();
        if (!next) return std::unexpected(next.error());
        if (!*next) break;
        const TarMember& member = **next;
        if (!member.is_file()) continue;
        const auto key = sample_key(member);
        if (!key) continue;
        if (!sample) {
            sample = key->stem;
            if (!member.prefix.empty())
                sample = texts.emplace_back(std::string(member.prefix) + "/" + std::string(key->stem));
        }
        std::string_view name = key->suffix;
        if (has_upper_case(name)) {
            std::string& lower = texts.emplace_back(name);
            std::ranges::transform(lower, lower.begin(),
                                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
            name = lower;
        }
        fields.push_back({name, bytes.subspan(member.data_offset, member.data_bytes)});
    }
    if (!sample) return corrupt(0, "the sample has no field");
    return *sample;
}

}  // namespace larder::protocol
