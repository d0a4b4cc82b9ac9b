#pragma once

// Admission copies fetched blocks from slots into the cache. A block of a dataset that is not compressed is written to
// disk as it is. A block of a compressed dataset goes through the Compressor first, then into whichever tier has room
// for the result. The slot stays busy while it is read; other fetches go on meanwhile. One Admission serves one
// dataset, on the thread of its shard.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cache/shard/compressor.h"
#include "cache/shard/fetch.h"
#include "cache/shard/pool.h"
#include "cache/shard/tracer.h"
#include "cache/store/compression.h"
#include "cache/store/store.h"

namespace larder::cache {

class Admission {
public:
    // The most bytes that the shard compresses at one time. A block above the limit is not admitted this time.
    static constexpr std::uint64_t kCompressingBytesMax = std::uint64_t{64} << 20;

    // Calls `admitted` with each block id and the block's uncompressed bytes once the block can be found. `store`,
    // `compressor` and `tracer` must outlive the Admission.
    Admission(DatasetStore& store, Compressor& compressor, Tracer& tracer, Compression requested,
              std::function<void(std::uint32_t block_id, std::uint64_t bytes)> admitted);
    ~Admission();

    // True if a block of `payload_bytes` is compressed before admission. Such a block must be read into a slot.
    // `dataset_bytes` is the uncompressed size of the whole dataset, here and in admit().
    bool compresses(std::uint32_t payload_bytes, std::uint64_t dataset_bytes) const;
    // Starts to admit the block in the slot of `fetch`. Call before `fetch` is delivered.
    void admit(const Fetch& fetch, std::uint32_t payload_crc, std::uint64_t dataset_bytes);

    const CompressionChoice& choice() const { return choice_; }
    std::size_t in_flight() const { return in_flight_; }

private:
    struct Block {
        Consumer* consumer = nullptr;
        std::byte* slot = nullptr;
        std::uint32_t slot_page = 0;
        std::uint32_t slot_pages = 0;
        std::uint32_t block_id = 0;
        std::uint32_t payload_bytes = 0;
        std::uint32_t payload_crc = 0;
        TraceId trace;
    };
    struct Write;
    struct Compressing;

    Block use_slot(const Fetch& fetch, std::uint32_t payload_crc);
    void release_slot(const Block& block);
    bool admit_to_memory(const Fetch& fetch, std::uint32_t payload_crc);
    void admit_uncompressed(const Block& block);
    void write_slot(const Block& block, const Reservation& reservation);
    void finish_compression(Compressing& work);
    bool admit_compressed(Compressing& work);
    void release(Compressing& work);
    void end_write(const Block& block, bool is_written);
    void note_admitted(const Block& block, Admitted to);
    // The admission has come to its end, with or without the block.
    void end_trace(const Block& block);

    DatasetStore& store_;
    Compressor& compressor_;
    Tracer& tracer_;
    CompressionChoice choice_;
    std::function<void(std::uint32_t block_id, std::uint64_t bytes)> admitted_;
    std::size_t in_flight_ = 0;
    Pool<Write> writes_;
    std::vector<std::unique_ptr<Compressing>> compressing_;  // all ever made: each keeps its memory for reuse
    std::vector<Compressing*> idle_;
};

}  // namespace larder::cache
