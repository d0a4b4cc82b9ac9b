#pragma once

// Compresses blocks in the background (background.h). A Compressor belongs to its shard's thread. A node that
// compresses nothing has no thread for it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cache/device.h"
#include "cache/shard/background.h"

struct ZSTD_CCtx_s;

namespace larder::cache {

class Compressor;

// One block to compress. The caller owns the work and the bytes of `raw`, and keeps both until `done` has run. The
// output memory is kept for the next use.
struct CompressWork : private BackgroundWork {
    std::span<const std::byte> raw;
    int level = 1;
    void (*done)(CompressWork& work) noexcept = nullptr;

    // The output, page-aligned: kRecordHeaderBytes for the header, not filled in, then the payload, then padding to a
    // page.
    std::span<std::byte> record() { return {memory_.get(), memory_bytes_}; }
    std::uint32_t stored_bytes = 0;  // of the compressed payload; 0: the block does not shrink enough
    std::uint32_t stored_crc = 0;

private:
    friend class Compressor;
    struct Free {
        void operator()(std::byte* memory) const;
    };
    std::unique_ptr<std::byte[], Free> memory_;
    std::size_t memory_bytes_ = 0;
    Compressor* compressor_ = nullptr;
};

class Compressor {
public:
    // `device` must outlive the Compressor, or have been stopped.
    Compressor(Device& device, bool threaded);
    ~Compressor();

    void start(CompressWork& work);
    // Joins the thread. Works that are not done never will be, and may be freed.
    void stop() { background_.stop(); }
    // Runs `done` of each finished work.
    void collect() { background_.collect(); }
    std::uint64_t bytes_in_flight() const { return bytes_in_flight_; }

private:
    struct FreeContext {
        void operator()(ZSTD_CCtx_s* context) const;
    };

    void compress(CompressWork& work);

    std::uint64_t bytes_in_flight_ = 0;
    std::unique_ptr<ZSTD_CCtx_s, FreeContext> context_;  // of the thread that compresses
    Background background_;
};

}  // namespace larder::cache
