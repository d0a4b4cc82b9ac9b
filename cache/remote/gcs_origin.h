#pragma once

// Google Cloud Storage. Objects are listed by its JSON API, and read by its XML API at endpoint/BUCKET/KEY, which takes
// keys as paths. Both name an object's version by its generation; their ETags differ from each other. Requests carry
// an OAuth token.

#include "base/error.h"
#include "cache/remote/http_remote.h"
#include "cache/remote/remote_options.h"
#include "cache/remote/remote_url.h"

namespace larder::cache {

// `url` is a gs:// URL. May block for some seconds to get a token.
Result<HttpRoot> make_gcs_root(const RemoteUrl& url, const RemoteOptions& options);

}  // namespace larder::cache
