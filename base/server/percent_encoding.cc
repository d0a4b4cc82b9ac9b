#include "base/server/percent_encoding.h"

#include <boost/url/encode.hpp>
#include <boost/url/grammar/hexdig_chars.hpp>
#include <boost/url/grammar/lut_chars.hpp>
#include <boost/url/grammar/string_token.hpp>
#include <boost/url/pct_string_view.hpp>
#include <boost/url/rfc/unreserved_chars.hpp>

namespace larder {

namespace urls = boost::urls;

std::string percent_encode(std::string_view text) {
    return urls::encode(text, urls::unreserved_chars);
}

void append_percent_encoded_path(std::string_view path, std::string& output) {
    constexpr auto kAllowed = urls::unreserved_chars + urls::grammar::lut_chars('/');
    urls::encode(path, kAllowed, {}, urls::string_token::append_to(output));
}

std::string percent_encode_path(std::string_view path) {
    std::string encoded;
    append_percent_encoded_path(path, encoded);
    return encoded;
}

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space) {
    const auto encoded = urls::make_pct_string_view(text);
    if (!encoded) return std::nullopt;
    urls::encoding_opts options;
    options.space_as_plus = plus_is_space;
    return encoded->decode(options);
}

std::string percent_decode_leniently(std::string_view text) {
    const auto is_digit = [&](std::size_t at) { return at < text.size() && urls::grammar::hexdig_chars(text[at]); };
    std::string decoded;
    while (!text.empty()) {
        const bool is_triple = text[0] == '%' && is_digit(1) && is_digit(2);
        const std::size_t taken = is_triple ? 3 : 1;
        decoded += is_triple ? urls::pct_string_view(text.substr(0, taken)).decode() : std::string(1, text[0]);
        text.remove_prefix(taken);
    }
    return decoded;
}

}  // namespace larder
