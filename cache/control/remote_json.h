#pragma once

// The options of a remote as the API and the catalog write them: only what is not the default.

#include <boost/json/object.hpp>

#include <string>

#include "base/error.h"
#include "cache/remote/remote_options.h"

namespace larder::cache {

boost::json::object remote_json(const RemoteOptions& options);
// `where` is what errors call the object.
Result<RemoteOptions> read_remote(const boost::json::object& object, const std::string& where);

// "auto", "path" or "host".
Result<S3Addressing> parse_addressing(std::string_view text);

}  // namespace larder::cache
