#include "base/server/token_digest.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace larder {
namespace {

constexpr std::size_t kTokenBytesMin = 16;
constexpr std::size_t kTokenBytesMax = 512;

}  // namespace

bool is_good_token(std::string_view token) {
    constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=";
    return token.size() >= kTokenBytesMin && token.size() <= kTokenBytesMax &&
           token.find_first_not_of(letters) == std::string_view::npos;
}

std::string good_token_text() {
    return "must have " + std::to_string(kTokenBytesMin) + " to " + std::to_string(kTokenBytesMax) +
           " letters, digits or -._~+/=";
}

TokenDigest token_digest(std::string_view token) {
    TokenDigest digest;
    SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
    return digest;
}

bool is_same(const TokenDigest& left, const TokenDigest& right) {
    return CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace larder
