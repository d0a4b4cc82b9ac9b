#include "cache/protocol/decompressor.h"

#include <zstd.h>

#include <string>

namespace larder::protocol {

void Decompressor::Free::operator()(ZSTD_DCtx_s* context) const {
    ::ZSTD_freeDCtx(context);
}

Result<std::unique_ptr<std::byte[]>> Decompressor::run(std::span<const std::byte> compressed, std::uint32_t raw_bytes) {
    if (!context_) context_.reset(::ZSTD_createDCtx());
    if (!context_) return fail(ErrorCode::no_space, "no memory for zstd's state");
    const unsigned long long said = ::ZSTD_getFrameContentSize(compressed.data(), compressed.size());
    if (said != ZSTD_CONTENTSIZE_UNKNOWN && said != raw_bytes) {
        return fail(ErrorCode::corrupt, "it is not a zstd frame of " + std::to_string(raw_bytes) + " bytes");
    }
    auto raw = std::make_unique_for_overwrite<std::byte[]>(raw_bytes);
    const std::size_t got =
        ::ZSTD_decompressDCtx(context_.get(), raw.get(), raw_bytes, compressed.data(), compressed.size());
    if (::ZSTD_isError(got) != 0) {
        return fail(ErrorCode::corrupt, std::string("zstd: ") + ::ZSTD_getErrorName(got));
    }
    if (got != raw_bytes) {
        return fail(ErrorCode::corrupt,
                    "it has " + std::to_string(got) + " bytes once decompressed, not " + std::to_string(raw_bytes));
    }
    return raw;
}

}  // namespace larder::protocol
