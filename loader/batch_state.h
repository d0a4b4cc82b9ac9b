#pragma once

// The contents of a Batch: its samples, their fields, and the blocks that hold their bytes. States are reused, so a
// warm loader allocates nothing per sample.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/protocol/manifest.h"
#include "loader/formats/sample_format.h"
#include "loader/larder.h"

namespace larder::detail {

class BlockClient;

struct BatchState {
    std::vector<Sample> samples;
    std::vector<Field> fields;              // of all samples, in order
    std::vector<std::uint32_t> field_ends;  // where the fields of sample i end in `fields`
    std::vector<std::uint32_t> tags;        // of the blocks, one reference each
    std::deque<std::string> texts;          // names that are not in the data verbatim
    std::shared_ptr<BlockClient> client;    // set while the caller has the Batch
    bool handed_out = false;                // set by BlockClient::hand_out

    // Adds a sample of the manifest. `block` has the bytes of its block, decompressed if the block is compressed.
    Result<void> add(const protocol::Manifest& manifest, SampleFormat& format, std::uint64_t sample,
                     std::uint32_t block_index, std::span<const std::byte> block);
    // After the last `add`: points each sample to its fields.
    void finish();
    std::uint64_t bytes() const;
    void clear();
};

}  // namespace larder::detail
