#pragma once

// A request for a dataset, as a table of the config or the body of POST /v1/datasets words it: the definition, and what
// the node decides where the request is silent.

#include <boost/json/fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "cache/control/catalog.h"
#include "cache/control/dataset_access.h"
#include "cache/dataset_definition.h"

namespace larder::cache {

struct DatasetRequest {
    DatasetDefinition definition;
    bool dry_run = false;              // only report what adding the dataset would find
    std::optional<std::string> owner;  // name or number
    std::optional<std::string> group;
    std::optional<unsigned> mode;
    // A quota that has only one of the two is 0 on the other tier.
    std::optional<std::uint64_t> quota_memory_bytes;
    std::optional<std::uint64_t> quota_disk_bytes;
};

// Reads the body strictly: an unknown key, a wrong type or a bad value is an error that names it.
Result<DatasetRequest> read_dataset_request(const boost::json::object& object);

// Replaces the names of owner and group by their numbers. May block for long: see dataset_access.h. Errors name the
// key.
Result<void> look_up_users(DatasetRequest& request);

// Checks the values and makes the record of the new dataset, without id and versions. `defaults` fills in access fields
// that the request lacks. Blocks only if owner or group are given by name. Errors name the key.
Result<DatasetRecord> check_dataset_request(const DatasetRequest& request, const DatasetAccess& defaults);

}  // namespace larder::cache
