#pragma once

// Parses the body of POST /v1/datasets, strictly. check_dataset_request checks the values.

#include <boost/json/fwd.hpp>

#include "base/error.h"
#include "cache/control/new_dataset.h"

namespace larder::cache {

Result<DatasetRequest> read_dataset_request(const boost::json::object& object);

}  // namespace larder::cache
