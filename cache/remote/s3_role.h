#pragma once

// Temporary credentials of a container or a machine, from the endpoint the platform gives it. Fetched when made, and
// again before they expire.

#include <memory>

#include "base/error.h"
#include "cache/remote/s3_credentials.h"

namespace larder::cache {

// Blocks for as long as the endpoint takes, two seconds a request at most.
Result<std::shared_ptr<const S3Credentials>> make_s3_role();

}  // namespace larder::cache
