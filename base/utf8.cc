#include "base/utf8.h"

#include <algorithm>

namespace larder {
namespace {

bool continues(char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

}  // namespace

std::size_t utf8_sequence_bytes(std::string_view text) {
    if (text.empty()) return 0;
    const auto lead = static_cast<unsigned char>(text.front());
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    const std::size_t bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (bytes > text.size() || !std::ranges::all_of(text.substr(1, bytes - 1), continues)) return 0;
    // Longer than need be, a surrogate, or above U+10FFFF.
    const auto second = static_cast<unsigned char>(text[1]);
    const bool is_wrong = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                          (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f);
    return is_wrong ? 0 : bytes;
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const std::size_t bytes = utf8_sequence_bytes(text);
        if (bytes == 0) return false;
        text.remove_prefix(bytes);
    }
    return true;
}

std::string escape_non_utf8(std::string_view text) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string escaped;
    escaped.reserve(text.size());
    while (!text.empty()) {
        const std::size_t bytes = utf8_sequence_bytes(text);
        if (bytes > 0) {
            escaped += text.substr(0, bytes);
        } else {
            const auto value = static_cast<unsigned char>(text.front());
            escaped += {'\\', 'x', digits[value >> 4], digits[value & 15]};
        }
        text.remove_prefix(std::max<std::size_t>(bytes, 1));
    }
    return escaped;
}

std::string_view utf8_prefix(std::string_view text, std::size_t bytes_max) {
    if (text.size() <= bytes_max) return text;
    while (bytes_max > 0 && continues(text[bytes_max])) --bytes_max;
    return text.substr(0, bytes_max);
}

}  // namespace larder
