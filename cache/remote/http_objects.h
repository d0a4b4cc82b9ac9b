#pragma once

// The objects of an http(s):// or s3:// URL, for indexing. HTTP has no listing: the names come from the URL's braces or
// its list, or an index.json describes them; each is asked for its size and tag. S3 lists, a page of a thousand keys at
// a time. Every call blocks, and fails within half a minute of a remote that does not answer.

#include <memory>

#include "cache/object_source.h"
#include "cache/remote/http_origin.h"
#include "cache/remote/http_transfers.h"

namespace larder::cache {

// `root` is that of `url`; `transfers` must outlive it.
std::unique_ptr<ObjectSource> make_http_objects(const RemoteUrl& url, const HttpRoot& root, HttpTransfers& transfers);

}  // namespace larder::cache
