#include "cache/shard/compressor.h"

#include <zstd.h>

#include <cstdlib>

#include "base/hash.h"
#include "cache/protocol/record.h"
#include "cache/protocol/wire.h"
#include "cache/store/compression.h"

namespace larder::cache {

using protocol::kPageBytes;
using protocol::kRecordHeaderBytes;

void CompressWork::Free::operator()(std::byte* memory) const {
    std::free(memory);
}

void Compressor::FreeContext::operator()(ZSTD_CCtx_s* context) const {
    ::ZSTD_freeCCtx(context);
}

Compressor::Compressor(Device& device, bool threaded) : background_(device, "compress", threaded) {}

Compressor::~Compressor() {
    stop();
}

void Compressor::start(CompressWork& work) {
    bytes_in_flight_ += work.raw.size();
    work.compressor_ = this;
    work.run = [](BackgroundWork& started) noexcept {
        auto& starting = static_cast<CompressWork&>(started);
        starting.compressor_->compress(starting);
    };
    work.BackgroundWork::done = [](BackgroundWork& ended) noexcept {
        auto& finished = static_cast<CompressWork&>(ended);
        finished.compressor_->bytes_in_flight_ -= finished.raw.size();
        finished.done(finished);
    };
    background_.start(work);
}

void Compressor::compress(CompressWork& work) {
    work.stored_bytes = 0;
    if (!context_) context_.reset(::ZSTD_createCCtx());
    const auto raw_bytes = static_cast<std::uint32_t>(work.raw.size());
    const std::uint32_t payload_bytes_max = compressed_bytes_max(raw_bytes);
    const std::size_t memory_bytes = protocol::record_bytes(payload_bytes_max, kPageBytes);
    if (work.memory_bytes_ < memory_bytes) {
        work.memory_bytes_ = 0;
        work.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, memory_bytes)));
        if (work.memory_ != nullptr) work.memory_bytes_ = memory_bytes;
    }
    // Without memory the block is admitted uncompressed.
    if (!context_ || work.memory_ == nullptr || payload_bytes_max == 0) return;
    ::ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, work.level);
    const std::size_t compressed_bytes = ::ZSTD_compress2(context_.get(), work.memory_.get() + kRecordHeaderBytes,
                                                          payload_bytes_max, work.raw.data(), work.raw.size());
    if (::ZSTD_isError(compressed_bytes) != 0) return;  // also if the result exceeds `payload_bytes_max`
    work.stored_bytes = static_cast<std::uint32_t>(compressed_bytes);
    work.stored_crc = crc32c({work.memory_.get() + kRecordHeaderBytes, compressed_bytes});
}

}  // namespace larder::cache
