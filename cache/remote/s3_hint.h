#pragma once

// Hints for the user on how to fix an S3 error. Source: Amazon S3 API Reference, Error Responses.

#include <string>
#include <string_view>

namespace larder::cache {

// The request that failed.
struct S3RequestInfo {
    std::string_view bucket;
    std::string_view endpoint;
    std::string_view region;  // the bucket's region if the error names it, else empty
    bool is_signed = false;
    bool requester_pays = false;
};

// Returns the hint for an HTTP status and the error's Code (empty: no Code). Returns "" if there is no hint.
std::string s3_hint(int status, std::string_view code, const S3RequestInfo& request);

}  // namespace larder::cache
