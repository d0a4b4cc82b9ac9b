#include "cache/protocol/arrow_schema.h"

#include <array>
#include <cstdint>
#include <optional>

#include "cache/protocol/flatbuffer.h"

namespace larder::protocol {
namespace {

// Slots of the tables.
constexpr std::uint64_t kMessageHeader = 2;
constexpr std::uint64_t kSchemaFields = 1;

std::optional<std::string> decode_base64(std::string_view text) {
    constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    while (text.ends_with('=')) text.remove_suffix(1);
    std::array<std::int8_t, 256> value_of{};
    value_of.fill(-1);
    for (std::size_t i = 0; i < kLetters.size(); ++i) {
        value_of[static_cast<unsigned char>(kLetters[i])] = static_cast<std::int8_t>(i);
    }
    std::string bytes;
    bytes.reserve(text.size() / 4 * 3 + 3);
    std::uint32_t bits = 0;
    int bit_count = 0;
    for (const char letter : text) {
        const std::int8_t value = value_of[static_cast<unsigned char>(letter)];
        if (value < 0) return std::nullopt;
        bits = (bits << 6 | static_cast<std::uint32_t>(value)) & 0xffffff;
        bit_count += 6;
        if (bit_count < 8) continue;
        bit_count -= 8;
        bytes += static_cast<char>(bits >> bit_count & 0xff);
    }
    return bytes;
}

// The flatbuffer of an IPC message: [0xffffffff, since Arrow 0.15] [length u32] [flatbuffer].
std::string_view flatbuffer_of(std::string_view message) {
    constexpr std::string_view kContinuation = "\xff\xff\xff\xff";
    if (message.starts_with(kContinuation)) message.remove_prefix(kContinuation.size());
    return message.size() < sizeof(std::uint32_t) ? std::string_view() : message.substr(sizeof(std::uint32_t));
}

}  // namespace

std::string arrow_schema_fields(std::string_view value) {
    std::string whole(value);
    const auto message = decode_base64(value);
    if (!message) return whole;
    const std::string_view buffer = flatbuffer_of(*message);
    const Flatbuffer walk(std::as_bytes(std::span(buffer)));
    const auto root = walk.root();
    const auto schema = root ? walk.slot(*root, kMessageHeader) : std::nullopt;
    const auto fields = schema ? walk.slot(*schema, kSchemaFields) : std::nullopt;
    if (!fields) return whole;
    std::string_view found = buffer.substr(*fields);
    // A message is padded to eight bytes, thus by what the metadata takes.
    while (found.ends_with('\0')) found.remove_suffix(1);
    return std::string(found);
}

}  // namespace larder::protocol
