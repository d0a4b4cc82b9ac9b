#pragma once

// The ObjectSource of a URL that is reached over HTTP, for indexing. HTTP has no listing: the names come from the URL's
// braces, from its list, or from an index.json, and a probe of each object returns its size and tag. A store lists a
// page of a thousand keys at a time (bucket_listing.h). Every call blocks. A call fails if the remote does not answer
// for 30 s, or for 10 s if it has never answered, and at once after a stop request.

#include <memory>
#include <stop_token>

#include "cache/remote/http_origin.h"
#include "cache/remote/http_transfers.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

// `root`: the HttpRoot of `url`. `transfers` must outlive the source. `stop` ends all calls of the source and of its
// readers.
std::unique_ptr<ObjectSource> make_http_objects(const RemoteUrl& url, const HttpRoot& root, HttpTransfers& transfers,
                                                std::stop_token stop = {});

}  // namespace larder::cache
