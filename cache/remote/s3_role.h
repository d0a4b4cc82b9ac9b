#pragma once

// Temporary credentials of a container or a machine, from the endpoint that the platform provides. They are fetched at
// construction, and again before they expire, on a thread of their own. Until new keys arrive, requests are signed with
// the old keys.

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "cache/remote/s3_credentials.h"

namespace larder::cache {

// Blocks until the endpoint answers, for at most two seconds per request.
Result<std::shared_ptr<const S3Credentials>> make_s3_role();

// Returns the time to wait before the next renewal: until five minutes before the keys expire, or for half of the
// remaining time if that is longer. After a failed renewal: a quarter of the remaining time, at most a minute. At least
// a second.
std::int64_t s3_role_renewal_ns(std::int64_t remaining_ns, bool failed);

}  // namespace larder::cache
