#pragma once

// Writes packed samples to shards in a directory. A shard ends before it exceeds PackRequest::shard_bytes. There is one
// class for each layout. `finish` ends the last shard.

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

// `request` and `manifest` must outlive the result.
Result<std::unique_ptr<PackShards>> make_pack_shards(const PackRequest& request, const std::string& directory,
                                                     const protocol::Manifest& manifest);

}  // namespace larder::cache
