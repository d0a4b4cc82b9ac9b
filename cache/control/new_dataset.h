#pragma once

// A request for a new dataset, in the words of the config or of the API, and the checked form of that request.

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "cache/control/catalog.h"
#include "cache/control/dataset_access.h"

namespace larder::cache {

struct DatasetRequest {
    std::string name;
    std::string url;
    RemoteOptions remote;
    std::optional<std::string> format;       // none: detected from its files
    std::optional<std::string> block;        // none: "sample"
    std::optional<std::string> compression;  // none: blocks are not compressed
    bool dry_run = false;                    // only report what adding it would find
    bool checksum = false;
    std::optional<std::uint64_t> tokens_per_sample;
    std::optional<std::string> owner;  // name or number
    std::optional<std::string> group;
    std::optional<unsigned> mode;
    std::optional<Quota> quota;
};

struct NewDataset {
    DatasetRecord record;  // without id and versions
    bool detect_format = false;
};

// `defaults` fills in access fields that the wish lacks. Errors name the key.
Result<NewDataset> check_dataset_request(const DatasetRequest& wish, const DatasetAccess& defaults);

}  // namespace larder::cache
