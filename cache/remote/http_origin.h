#pragma once

// Makes the HttpOrigin of a dataset: a plain HTTP server, or a store with buckets (s3_origin.h, gcs_origin.h,
// azure_origin.h).

#include <memory>
#include <string>

#include "base/error.h"
#include "cache/remote/http_remote.h"
#include "cache/remote/remote_options.h"
#include "cache/remote/remote_url.h"

namespace larder::cache {

// `url` is of any scheme but file://. May block for some seconds to look for credentials.
Result<HttpRoot> make_http_root(const RemoteUrl& url, const RemoteOptions& options);

// Returns "https://host:port" for "https://host:port/path".
std::string endpoint_of_url(std::string_view url);

}  // namespace larder::cache
