#pragma once

// The signature of a GET request by an account's shared key. It does not cover the host: see trusted_endpoint.h.
// Source: Azure Storage, Authorize with Shared Key.

#include <string>
#include <string_view>

namespace larder::cache {

struct AzureRequest {
    std::string_view url;      // as it is sent
    std::string_view range;    // the value of the Range header, such as "bytes=0-99"; empty: none
    std::string_view date;     // the value of x-ms-date
    std::string_view version;  // the value of x-ms-version
};

// Returns the text that is signed.
std::string azure_string_to_sign(std::string_view account, const AzureRequest& request);
// Returns the value of the Authorization header. `key` is decoded.
std::string sign_azure_request(std::string_view account, std::string_view key, const AzureRequest& request);

}  // namespace larder::cache
