#pragma once

// What every JSON API shares: answers made of JSON, the refusals all routes have in common, and the object in a body.

#include <boost/json/object.hpp>

#include <string_view>

#include "base/error.h"
#include "base/server/http.h"

namespace larder {

HttpResponse json_response(const boost::json::object& body, unsigned status = 200);
// 200 {}, or the error.
HttpResponse done_response(const Result<void>& done);
// 405, with what is allowed.
HttpResponse method_not_allowed(std::string_view allowed);
HttpResponse no_such_path();

// The object in a request's body; an empty body is an empty object.
Result<boost::json::object> request_object(const HttpRequest& request);

}  // namespace larder
