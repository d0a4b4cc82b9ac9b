#include "cache/remote/percent_encoding.h"

namespace larder::cache {
namespace {

bool is_unreserved(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_' || c == '~';
}

void append_encoded(char c, std::string& to) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(c);
    to += '%';
    to += kDigits[byte >> 4];
    to += kDigits[byte & 15];
}

int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

void append_percent_encoded(std::string_view path, std::string& to) {
    for (const char c : path) {
        if (is_unreserved(c) || c == '/') {
            to += c;
        } else {
            append_encoded(c, to);
        }
    }
}

std::string percent_encoded_value(std::string_view value) {
    std::string encoded;
    for (const char c : value) {
        if (is_unreserved(c)) {
            encoded += c;
        } else {
            append_encoded(c, encoded);
        }
    }
    return encoded;
}

std::string percent_decoded(std::string_view text) {
    std::string decoded;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const bool triple = text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
        if (triple) {
            decoded += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
            i += 2;
        } else {
            decoded += text[i];
        }
    }
    return decoded;
}

}  // namespace larder::cache
