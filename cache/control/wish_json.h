#pragma once

// The body of POST /v1/datasets. Reading is strict, as everywhere; what the wish means is check_wish's.

#include <boost/json/fwd.hpp>

#include "base/error.h"
#include "cache/control/new_dataset.h"

namespace larder::cache {

Result<DatasetWish> read_wish(const boost::json::object& object);

}  // namespace larder::cache
