#include "cache/remote/base64.h"

#include <openssl/evp.h>

namespace larder::cache {

std::string base64_encode(std::string_view bytes) {
    std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // OpenSSL writes a zero at the end
    const int length =
        EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                        reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
    text.resize(static_cast<std::size_t>(length));
    return text;
}

std::string base64url_encode(std::string_view bytes) {
    std::string text = base64_encode(bytes);
    while (text.ends_with('=')) text.pop_back();
    for (char& c : text) c = c == '+' ? '-' : c == '/' ? '_' : c;
    return text;
}

std::optional<std::string> base64_decode(std::string_view text) {
    constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string_view digits = text;
    for (int i = 0; i < 2 && digits.ends_with('='); ++i) digits.remove_suffix(1);
    // OpenSSL skips spaces, which no key has.
    if (text.size() % 4 != 0 || digits.find_first_not_of(kAlphabet) != std::string_view::npos) return std::nullopt;
    std::string bytes(text.size() / 4 * 3, '\0');
    const int length =
        EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                        reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
    if (length < 0) return std::nullopt;
    bytes.resize(static_cast<std::size_t>(length) - (text.size() - digits.size()));
    return bytes;
}

}  // namespace larder::cache
