#pragma once

// Where a secret may be sent that whoever gets it can use: a token of Google, a SAS of Azure. Whoever may add datasets
// names their endpoints, so that such a secret must go to the store itself only, or to an endpoint that the owner of
// the credentials named beside them. A signature (S3, Azure's shared key) tells nothing to whoever gets it, and needs
// no such rule.

#include <span>
#include <string_view>

namespace larder::cache {

// True if the endpoint is https:// and its host is one of `hosts`. A host that begins with a dot is for the hosts that
// end so.
bool is_endpoint_of(std::string_view endpoint, std::span<const std::string_view> hosts);

}  // namespace larder::cache
