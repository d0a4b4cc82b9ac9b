#pragma once

// S3: the endpoint of a bucket, with signed requests.

#include "base/error.h"
#include "cache/remote/http_remote.h"
#include "cache/remote/remote_options.h"
#include "cache/remote/remote_url.h"

namespace larder::cache {

// `url` is an s3:// URL. May block for some seconds to look for credentials.
Result<HttpRoot> make_s3_root(const RemoteUrl& url, const RemoteOptions& options);

}  // namespace larder::cache
