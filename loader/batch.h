#pragma once

// Makes batches, for Loader and Dataset. `make_batch` waits for the blocks of the samples, divides the samples into
// fields, and hands the batch to the caller. Damaged blocks are refetched. A BatchState is the contents of a Batch.
// States are reused, so a warm loader allocates nothing per sample.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/protocol/manifest.h"
#include "loader/formats/sample_format.h"
#include "loader/larder.h"

namespace larder::detail {

class BlockClient;

// A sample of a batch to be made. It holds a reference to its block.
struct BatchSample {
    std::uint64_t sample = 0;
    std::uint32_t tag = 0;  // of the block
};

struct BatchOptions {
    const std::string& dataset;  // for errors
    bool skip_failed = false;    // leave out samples that cannot be read, instead of failing
    // The samples stay planned after an error, so their failed blocks are requested again. Another batch follows, so
    // this one must leave a slab free.
    bool is_planned = false;
};

// Makes a batch, which takes over the samples' references to their blocks. After an error the samples still hold them.
// A sample's tag changes if its block is refetched. Calls `on_starved` if no room is left to request the blocks and
// nothing is in flight: it makes room or returns the error.
Result<Batch> make_batch(const std::shared_ptr<BlockClient>& client, std::span<BatchSample> samples,
                         const BatchOptions& options, const std::function<Result<void>()>& on_starved);

struct BatchState {
    std::vector<Sample> samples;
    std::vector<Field> fields;              // of all samples, in order
    std::vector<std::uint32_t> field_ends;  // where the fields of sample i end in `fields`
    std::vector<RowPlace> rows;             // samples that are rows: of each
    std::uint64_t row_bytes = 0;            // the rows' shares of their blocks
    std::vector<std::uint32_t> tags;        // of the blocks, one reference each
    std::deque<std::string> texts;          // names that are not in the data verbatim
    std::shared_ptr<BlockClient> client;    // set while the caller has the Batch
    bool handed_out = false;                // set by BlockClient::hand_out

    // Adds all samples. Returns false if some blocks are damaged: they were requested again and must be awaited.
    Result<bool> fill(BlockClient& from, std::span<BatchSample> batch_samples, const BatchOptions& options);
    // Adds a sample of the manifest. `block` has the bytes of its block, decompressed if the block is compressed.
    Result<void> add(const protocol::Manifest& manifest, SampleFormat& format, std::uint64_t sample,
                     std::uint32_t block_index, std::span<const std::byte> block);
    // After the last `add`: points each sample to its fields.
    void finish();
    // Hands the filled state to the caller, who keeps the client until the batch is released.
    static Batch hand_out(std::shared_ptr<BatchState> state, const std::shared_ptr<BlockClient>& client);
    std::uint64_t bytes() const;
    void clear();
};

}  // namespace larder::detail
