#pragma once

// The answer of a store that refuses a request. S3, Google Cloud Storage and Azure answer with the same XML:
// <Error><Code>...</Code><Message>...</Message></Error>. The rest of it may contain what was signed, so that nothing
// else is ever quoted.

#include <string>
#include <string_view>

namespace larder::cache {

struct StoreError {
    std::string code;     // empty: none
    std::string message;  // the first line
    std::string region;   // S3: the bucket's, if the store names it
};

// Returns an empty error if the body is not such XML.
StoreError parse_store_error(std::string_view body);

// Joins the code, what the user can do (`hint`, may be empty) and the store's message.
std::string explain_store_error(const StoreError& error, const std::string& hint);

// Returns what to do if a plain HTTP request reached a server that speaks TLS, else "". Such a server answers with
// status 400 and a text.
std::string explain_plain_request_to_tls(int status, std::string_view body);

}  // namespace larder::cache
