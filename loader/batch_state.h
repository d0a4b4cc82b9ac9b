#pragma once

// What a Batch refers to: its samples, their fields, and the blocks their bytes lie in. States are reused, so a warm
// loader allocates nothing per sample.

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
    std::vector<Field> fields;              // of all samples, one after the other
    std::vector<std::uint32_t> field_ends;  // of sample i in `fields`
    std::vector<std::uint32_t> tags;        // of the blocks, one reference each
    std::deque<std::string> texts;          // names that do not stand in the data as they are
    std::shared_ptr<BlockClient> client;    // while a Batch is out
    bool handed_out = false;                // BlockClient::hand_out

    // Adds a sample of the manifest, from its block's bytes (decompressed ones, where it is compressed).
    Result<void> add(const protocol::Manifest& manifest, SampleFormat& format, std::uint64_t sample,
                     std::uint32_t block_index, std::span<const std::byte> block);
    // After the last `add`: points each sample to its fields.
    void finish();
    std::uint64_t bytes() const;
    void clear();
};

}  // namespace larder::detail
