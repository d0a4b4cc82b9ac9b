#pragma once

// A dataset as somebody wishes for it, in the words of the config or of the API, and what that means once checked.

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "cache/control/access.h"
#include "cache/control/catalog.h"

namespace larder::cache {

struct DatasetWish {
    std::string name;
    std::string url;
    RemoteOptions remote;
    std::optional<std::string> format;       // none: as its files look
    std::optional<std::string> block;        // none: a sample
    std::optional<std::string> compression;  // none: blocks are cached as they are
    bool dry_run = false;                    // only say what adding it would find
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

// `defaults` is the access where the wish says nothing. Errors name the key.
Result<NewDataset> check_wish(const DatasetWish& wish, const Access& defaults);

}  // namespace larder::cache
