#pragma once

// Brings blocks that came into a slot into the cache: to disk as they are, or, where the dataset is to be compressed,
// through the Compressor and then into whichever tier has room for what is left of them. The slot stays pinned while it
// is read; everything else that is waiting goes on. One dataset's; on its shard's thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cache/shard/compressor.h"
#include "cache/shard/fetch.h"
#include "cache/shard/pool.h"
#include "cache/store.h"
#include "cache/store/compression.h"

namespace larder::cache {

class Admission {
public:
    // Compressed at one time, of one dataset: what is above is not admitted, this time.
    static constexpr std::uint64_t kCompressingBytesMax = std::uint64_t{64} << 20;

    // `admitted` hears of each block, and its bytes, once it is findable. All must outlive it.
    Admission(DatasetStore& store, Compressor& compressor, Compression wished,
              std::function<void(std::uint32_t block_id, std::uint64_t bytes)> admitted);
    ~Admission();

    // Whether a block of this size is to be compressed before it is admitted, so that it has to come to a slot.
    bool compresses(std::uint32_t payload_bytes, std::uint64_t dataset_bytes) const;
    // The block is in the slot of `fetch`, which is not delivered yet.
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
    };
    struct Write;
    struct Compressing;

    static Block hold(const Fetch& fetch, std::uint32_t payload_crc);
    void let_go(const Block& block);
    bool admitted_to_memory(const Fetch& fetch, std::uint32_t payload_crc);
    void admit_as_it_is(const Block& block);
    void write_slot(const Block& block, const Reservation& reservation);
    void compressed(Compressing& work);
    bool admit_compressed(Compressing& work);
    void give_back(Compressing& work);

    DatasetStore& store_;
    Compressor& compressor_;
    CompressionChoice choice_;
    std::function<void(std::uint32_t block_id, std::uint64_t bytes)> admitted_;
    std::size_t in_flight_ = 0;
    Pool<Write> writes_;
    std::vector<std::unique_ptr<Compressing>> compressing_;  // all there are; they keep their memory
    std::vector<Compressing*> idle_;
};

}  // namespace larder::cache
