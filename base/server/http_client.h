#pragma once

// A blocking HTTP client: one request, one answer, one connection, on the calling thread. An endpoint is
//
//     unix:PATH, or PATH with a slash in it     a Unix socket
//     http://HOST:PORT, or IP:PORT              TCP
//     https://HOST:PORT                         TCP with TLS 1.2 or newer; the server's certificate must be for HOST
//
// An answer of any status is a value. Errors: `unavailable` means nobody listens there or the connection broke,
// `timeout` that no answer came in time, `protocol` that the two could not agree on TLS.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/server/http_message.h"

namespace larder {

struct HttpClientOptions {
    // From connecting to the last byte of the answer; of a stream, until its header and from piece to piece. A name
    // that is no IP address is looked up outside of it.
    std::int64_t timeout_ms = 30'000;
    std::string bearer_token;
    // PEM files, for https://. Without a CA file the system's authorities are trusted.
    std::string ca_file;
    std::string certificate_file;
    std::string key_file;
};

// Where a client's credentials lie; each may be empty.
struct HttpCredentials {
    std::string token_file;  // its first line is the bearer token
    std::string ca_file;
    std::string certificate_file;
    std::string key_file;
};
// Reads the token.
Result<HttpClientOptions> http_client_options(const HttpCredentials& credentials);

struct HttpEndpoint {
    std::string path;  // Unix socket; empty for TCP
    std::string host;  // a name, or an IP address without brackets
    std::uint16_t port = 0;
    bool tls = false;
};
// invalid_argument says what forms there are.
Result<HttpEndpoint> parse_http_endpoint(std::string_view text);

Result<HttpResponse> http_request(const std::string& endpoint, std::string_view method, std::string_view target,
                                  std::string_view body = {}, const HttpClientOptions& options = {});

// GETs an answer that goes on, and gives each part as it arrives to `take`, until `take` says false or the server ends
// it well. An answer that is no 200 is the error inside it.
Result<void> http_get_stream(const std::string& endpoint, std::string_view target,
                             const std::function<bool(std::string_view part)>& take,
                             const HttpClientOptions& options = {});

}  // namespace larder
