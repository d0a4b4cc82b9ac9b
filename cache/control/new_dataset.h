#pragma once

// The checked form of a request for a new dataset.

#include "base/error.h"
#include "cache/control/catalog.h"
#include "cache/control/dataset_access.h"
#include "cache/control/dataset_request.h"

namespace larder::cache {

struct NewDataset {
    DatasetRecord record;  // without id and versions
    bool detect_format = false;
};

// `defaults` fills in access fields that the request lacks. Errors name the key.
Result<NewDataset> check_dataset_request(const DatasetRequest& request, const DatasetAccess& defaults);

}  // namespace larder::cache
