#pragma once

// The ObjectSource of a URL that is reached over HTTP, for indexing. HTTP has no listing: the names come from the URL's
// braces, from its list, or from an index.json, and a probe of each object returns its size and tag. A store lists a
// page of a thousand keys at a time (bucket_listing.h), and a listing that takes too much memory is an error, as the
// store may be wrong or hostile. Every call blocks. A call fails if the remote does not answer
// for 30 s, or for 10 s if it has never answered, and at once after a stop request.

#include <cstdint>
#include <memory>
#include <stop_token>

#include "cache/remote/http_origin.h"
#include "cache/remote/http_transfers.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

// A quarter of the memory that this process can have.
std::uint64_t listing_bytes_max();

// `root`: the HttpRoot of `url`. `transfers` must outlive the source. `stop` ends all calls of the source and of its
// readers. `bytes_max`: the memory that the listing of a bucket may take.
std::unique_ptr<ObjectSource> make_http_objects(const RemoteUrl& url, const HttpRoot& root, HttpTransfers& transfers,
                                                std::stop_token stop = {},
                                                std::uint64_t bytes_max = listing_bytes_max());

}  // namespace larder::cache
