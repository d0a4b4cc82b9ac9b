#include "base/server/token_digest.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace larder {

TokenDigest token_digest(std::string_view token) {
    TokenDigest digest;
    SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
    return digest;
}

bool is_same(const TokenDigest& left, const TokenDigest& right) {
    return CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace larder
