#pragma once

// Temporary credentials of a container or a machine, from the endpoint the platform gives it. Fetched when made, and
// again before they expire, on a thread of their own: who reads meanwhile signs with the keys of before.

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "cache/remote/s3_credentials.h"

namespace larder::cache {

// Blocks for as long as the endpoint takes, two seconds a request at most.
Result<std::shared_ptr<const S3Credentials>> make_s3_role();

// When to ask for new ones, from now: five minutes before the old expire, or half way there where that is later. What
// could not be had is asked for again within a minute, and more often the nearer the end is.
std::int64_t s3_role_renewal_ns(std::int64_t remaining_ns, bool failed);

}  // namespace larder::cache
