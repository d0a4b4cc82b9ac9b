#pragma once

// UTF-8 (RFC 3629). The functions are pure.

#include <cstddef>
#include <string>
#include <string_view>

namespace larder {

// Returns the length of the UTF-8 sequence with which a text begins; 0 if it begins with none.
std::size_t utf8_sequence_bytes(std::string_view text);

bool is_utf8(std::string_view text);

// Returns the text with each byte that is no UTF-8 written as the four characters \xff. UTF-8 stays as it is, also
// where it has these characters.
std::string escape_non_utf8(std::string_view text);

// Returns the longest beginning of a UTF-8 text that has at most `bytes_max` bytes and ends at a character's end.
std::string_view utf8_prefix(std::string_view text, std::size_t bytes_max);

}  // namespace larder
