#pragma once

// Some requests can be used by whoever gets them: those with a token of Google or a SAS of Azure, and those signed by
// Azure's shared key, since the signed text has no host and can be sent to the store again for 15 minutes. Whoever may
// add datasets names their endpoints. So such a request must go to the store itself only, or to an endpoint that the
// owner of the credentials named beside them. A signature of S3 covers the host, and needs no such rule.

#include <span>
#include <string_view>

namespace larder::cache {

// True if the endpoint is https:// and its host is one of `hosts`. A host that begins with a dot is for the hosts that
// end so.
bool is_endpoint_of(std::string_view endpoint, std::span<const std::string_view> hosts);

}  // namespace larder::cache
