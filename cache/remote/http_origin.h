#pragma once

// Who is asked for a dataset's objects: a plain HTTP server, or an S3 endpoint whose requests are signed.

#include <memory>
#include <string>

#include "base/error.h"
#include "cache/remote/http_remote.h"
#include "cache/remote/remote_options.h"
#include "cache/remote/remote_url.h"

namespace larder::cache {

// Of http:// and s3://. May look for credentials, and so block for some seconds.
Result<HttpRoot> make_http_root(const RemoteUrl& url, const RemoteOptions& options);

// "https://host:port" of "https://host:port/path".
std::string endpoint_of_url(std::string_view url);

}  // namespace larder::cache
