#pragma once

// Parses the body of POST /v1/datasets, strictly. check_wish checks the values.

#include <boost/json/fwd.hpp>

#include "base/error.h"
#include "cache/control/new_dataset.h"

namespace larder::cache {

Result<DatasetWish> read_wish(const boost::json::object& object);

}  // namespace larder::cache
