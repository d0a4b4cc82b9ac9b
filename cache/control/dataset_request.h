#pragma once

// A request for a dataset, as a table of the config or the body of POST /v1/datasets words it. new_dataset.h checks the
// values.

#include <boost/json/fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "cache/remote/remote_options.h"

namespace larder::cache {

struct DatasetRequest {
    std::string name;
    std::string url;
    RemoteOptions remote;
    std::optional<std::string> format;       // none: detected from the files
    std::optional<std::string> block;        // sample, object or a size; none: sample
    std::optional<std::string> compression;  // none, auto, zstd or zstd:LEVEL; without one, blocks are not compressed
    bool dry_run = false;                    // only report what adding the dataset would find
    bool checksum = false;
    std::optional<std::uint64_t> tokens_per_sample;
    std::optional<std::string> owner;  // name or number
    std::optional<std::string> group;
    std::optional<unsigned> mode;
    // A quota that has only one of the two is 0 on the other tier.
    std::optional<std::uint64_t> quota_memory_bytes;
    std::optional<std::uint64_t> quota_disk_bytes;
};

// Reads the body strictly: an unknown key or a wrong type is an error that names it.
Result<DatasetRequest> read_dataset_request(const boost::json::object& object);

}  // namespace larder::cache
