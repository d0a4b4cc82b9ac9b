#pragma once

// Where packed samples go: shards in a directory, each ended before it grows past the size that was asked for. One
// class for each layout. `finish` ends the last one.

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "cache/dataset/pack.h"
#include "cache/dataset/pack_source.h"

namespace larder::cache {

class PackShards {
public:
    virtual ~PackShards() = default;
    virtual Result<void> add(const SourceSample& sample) = 0;
    virtual Result<void> finish() = 0;
    virtual std::uint64_t shard_count() const = 0;
};

// The request and the manifest outlive it.
Result<std::unique_ptr<PackShards>> make_pack_shards(const PackRequest& request, const std::string& directory,
                                                     const protocol::Manifest& manifest);

}  // namespace larder::cache
