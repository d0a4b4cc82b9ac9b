#pragma once

// Compresses blocks on a thread of its own, so that the data plane keeps serving. In each turn the shard starts works
// and collects finished ones; the thread wakes the shard's device when a work is done. Without a thread (for
// deterministic tests) `collect` does the work itself.
//
// A Compressor belongs to its shard's thread. The first work starts the compressing thread, so a node that compresses
// nothing has none.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "base/file.h"
#include "cache/device.h"

struct ZSTD_CCtx_s;

namespace larder::cache {

// One block to compress. The caller owns the work and the bytes of `raw`, and keeps both until `done` has run. The
// output memory is kept for the next use.
struct CompressWork {
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
    CompressWork* next_ = nullptr;
};

class Compressor {
public:
    // `device` must outlive the Compressor, or have been stopped.
    Compressor(Device& device, bool threaded);
    ~Compressor();
    Compressor(const Compressor&) = delete;
    Compressor& operator=(const Compressor&) = delete;

    void start(CompressWork& work);
    // Joins the thread. Works that are not done never will be, and may be freed.
    void stop();
    // Runs `done` of each finished work.
    void collect();
    std::uint64_t bytes_in_flight() const { return bytes_in_flight_; }

private:
    struct Watch {
        Operation operation;
        Device* device = nullptr;
        int fd = -1;
    };
    struct FreeContext {
        void operator()(ZSTD_CCtx_s* context) const;
    };
    struct List {
        CompressWork* first = nullptr;
        CompressWork* last = nullptr;
        void push(CompressWork& work);
        CompressWork* pop();
    };

    void run(const std::stop_token& stop);
    void compress(CompressWork& work);

    Device& device_;
    const bool threaded_;
    std::uint64_t bytes_in_flight_ = 0;
    std::unique_ptr<ZSTD_CCtx_s, FreeContext> context_;  // of the thread that compresses
    FileDescriptor done_event_;
    Watch watch_;
    std::mutex mutex_;  // guards the lists
    std::condition_variable_any ready_;
    List waiting_;
    List done_;
    std::jthread thread_;
};

}  // namespace larder::cache
