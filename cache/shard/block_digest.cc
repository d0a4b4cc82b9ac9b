#include "cache/shard/block_digest.h"

#include <openssl/sha.h>

#include <algorithm>

namespace larder::cache {

BlockDigest digest_of(std::span<const std::byte> block) {
    std::array<unsigned char, SHA256_DIGEST_LENGTH> whole;
    ::SHA256(reinterpret_cast<const unsigned char*>(block.data()), block.size(), whole.data());
    BlockDigest digest;
    std::copy_n(whole.begin(), digest.bytes.size(), digest.bytes.begin());
    return digest;
}

}  // namespace larder::cache
