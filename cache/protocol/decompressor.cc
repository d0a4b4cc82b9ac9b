#include "cache/protocol/decompressor.h"

#include <zstd.h>

#include <string>

#include "cache/protocol/claims.h"

namespace larder::protocol {

void Decompressor::Free::operator()(ZSTD_DCtx_s* context) const {
    ::ZSTD_freeDCtx(context);
}

Result<std::unique_ptr<std::byte[]>> Decompressor::run(std::span<const std::byte> compressed, std::uint32_t raw_bytes) {
    if (!context_) context_.reset(::ZSTD_createDCtx());
    if (!context_) return fail(ErrorCode::no_space, "no memory for zstd's state");
    const unsigned long long declared_bytes = ::ZSTD_getFrameContentSize(compressed.data(), compressed.size());
    if (declared_bytes != ZSTD_CONTENTSIZE_UNKNOWN && declared_bytes != raw_bytes) {
        return fail(ErrorCode::corrupt, "it is not a zstd frame of " + std::to_string(raw_bytes) + " bytes");
    }
    if (!may_decompress_to(compressed.size(), raw_bytes)) {
        return fail(ErrorCode::corrupt, "its " + std::to_string(compressed.size()) + " bytes cannot hold " +
                                            std::to_string(raw_bytes) + " decompressed bytes");
    }
    auto raw = std::make_unique_for_overwrite<std::byte[]>(raw_bytes);
    const std::size_t actual_bytes =
        ::ZSTD_decompressDCtx(context_.get(), raw.get(), raw_bytes, compressed.data(), compressed.size());
    if (::ZSTD_isError(actual_bytes) != 0) {
        return fail(ErrorCode::corrupt, std::string("zstd: ") + ::ZSTD_getErrorName(actual_bytes));
    }
    if (actual_bytes != raw_bytes) {
        return fail(ErrorCode::corrupt, "it has " + std::to_string(actual_bytes) + " bytes once decompressed, not " +
                                            std::to_string(raw_bytes));
    }
    return raw;
}

}  // namespace larder::protocol
