#pragma once

// Makes what a Google service account sends to get a token: a JWT that its private key signs (RFC 7523, RS256).

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder::cache {

// The parts used of a service account's file.
struct ServiceAccount {
    std::string client_email;
    std::string private_key_id;
    std::string private_key;  // PEM
    std::string token_uri;
};

// `name` is the file's, for errors. These never quote the text.
Result<ServiceAccount> parse_service_account(std::string_view text, const std::string& name);

// Returns the JWT. It is valid for an hour from `now_unix_s`.
Result<std::string> make_google_assertion(const ServiceAccount& account, std::string_view scope,
                                          std::int64_t now_unix_s);

}  // namespace larder::cache
