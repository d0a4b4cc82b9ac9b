#pragma once

// What a user can do about an S3 error. Source: Amazon S3 API Reference, Error Responses.

#include <string>
#include <string_view>

namespace larder::cache {

// How the request was made that got the error.
struct S3Asked {
    std::string_view bucket;
    std::string_view endpoint;
    std::string_view region;  // as the error names the bucket's; empty: it does not
    bool is_signed = false;
    bool requester_pays = false;
};

// For an HTTP status and the error's Code (empty: none came). Empty where there is nothing to advise.
std::string s3_hint(int status, std::string_view code, const S3Asked& asked);

}  // namespace larder::cache
