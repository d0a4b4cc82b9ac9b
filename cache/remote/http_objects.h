#pragma once

// The objects of an http(s):// or s3:// URL, for indexing. HTTP has no listing: the names come from the URL's braces or
// its list, or an index.json describes them; each is asked for its size and tag. S3 lists, a page of a thousand keys at
// a time. Every call blocks, and fails within half a minute of a remote that does not answer, and at once when it is
// asked to stop.

#include <memory>
#include <stop_token>

#include "cache/object_source.h"
#include "cache/remote/http_origin.h"
#include "cache/remote/http_transfers.h"

namespace larder::cache {

// `root` is that of `url`; `transfers` must outlive it. `stop` holds for all calls of it and its readers.
std::unique_ptr<ObjectSource> make_http_objects(const RemoteUrl& url, const HttpRoot& root, HttpTransfers& transfers,
                                                std::stop_token stop = {});

}  // namespace larder::cache
