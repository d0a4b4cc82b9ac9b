#pragma once

// Temporary credentials of a container or a machine, from the endpoint that the platform provides. They are renewed
// before they expire (renewed_value.h).

#include <memory>

#include "base/error.h"
#include "cache/remote/s3_credentials.h"

namespace larder::cache {

// Blocks until the endpoint answers, for at most two seconds per request.
Result<std::shared_ptr<const S3Credentials>> make_s3_role();

}  // namespace larder::cache
