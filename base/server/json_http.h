#pragma once

// Helpers shared by every JSON API: answers made of JSON, the common refusals, and the object in a body.

#include <boost/json/object.hpp>
#include <boost/json/storage_ptr.hpp>

#include <string_view>

#include "base/error.h"
#include "base/server/http.h"

namespace larder {

HttpResponse json_response(const boost::json::object& body, unsigned status = 200);
// Returns 200 {}, or the error.
HttpResponse done_response(const Result<void>& result);
// Returns 405 with the allowed methods.
HttpResponse method_not_allowed(std::string_view allowed);
HttpResponse no_such_path();

// Returns the object in a request's body, in memory of `storage`; an empty body is an empty object.
Result<boost::json::object> request_object(const HttpRequest& request, boost::json::storage_ptr storage = {});

}  // namespace larder
