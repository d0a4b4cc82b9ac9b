#pragma once

// The options of a remote in JSON, for the API and the catalog. Default values are left out.

#include <boost/json/object.hpp>

#include <string>

#include "base/error.h"
#include "cache/remote/remote_options.h"

namespace larder::cache {

boost::json::object remote_json(const RemoteOptions& options);
// `where` names the object in errors.
Result<RemoteOptions> read_remote(const boost::json::object& object, const std::string& where);

// "auto", "path" or "host".
Result<S3Addressing> parse_addressing(std::string_view text);

}  // namespace larder::cache
