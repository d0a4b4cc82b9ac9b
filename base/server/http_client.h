#pragma once

// A blocking HTTP/1.1 client over libcurl, on the calling thread. An endpoint is
//
//     unix:PATH, or PATH with a slash in it     a Unix socket
//     http://HOST:PORT, or IP:PORT              TCP
//     https://HOST:PORT                         TCP with TLS 1.2 or newer; the server's certificate must be for HOST
//
// Several endpoints, separated by commas, are servers that stand in for each other. A request goes to the one that
// answered last. If nobody takes it there, or the answer is 421 (this server is not in charge), the request goes to the
// next, to each once. A request other than GET that may have been taken is an error, and the next request goes to the
// next endpoint.
//
// An answer of any status is a value: redirects are not followed. No proxy is used unless the options say so. Errors:
// `unavailable` means nobody listens there or the connection broke, `timeout` that no answer came in time, `protocol`
// that the two could not agree on TLS or that the answer is larger than it may be.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/server/http_message.h"

namespace larder {

struct HttpClientOptions {
    // The limit from connecting to the last byte of the answer; for a stream, until its first piece and then from piece
    // to piece, checked once a second. 0 or less: no limit. A lookup of a host name may last longer.
    std::int64_t timeout_ms = 30'000;
    std::string bearer_token;
    // PEM files, for https://. Without a CA file the system's authorities are trusted.
    std::string ca_file;
    std::string certificate_file;
    std::string key_file;
    std::size_t answer_bytes_max = 256u << 20;  // for a stream, limits only an answer that is an error
    // A Content-Type here replaces that of a body, application/json.
    std::vector<std::pair<std::string, std::string>> headers;
    bool uses_environment_proxy = false;  // http_proxy, https_proxy, no_proxy
};

// The files with a client's credentials; each may be empty.
struct HttpCredentials {
    std::string token_file;  // its first line is the bearer token
    std::string ca_file;
    std::string certificate_file;
    std::string key_file;
};
// Reads the token and returns the options with it.
Result<HttpClientOptions> http_client_options(const HttpCredentials& credentials);

struct HttpEndpoint {
    std::string path;  // Unix socket; empty for TCP
    std::string host;  // a name, or an IP address without brackets
    std::uint16_t port = 0;
    bool tls = false;
};
// Parses an endpoint; the error invalid_argument lists the known forms.
Result<HttpEndpoint> parse_http_endpoint(std::string_view text);
// Divides a list at its commas, without the spaces around them.
std::vector<std::string> split_http_endpoints(std::string_view text);
// Parses one or several endpoints, and returns the first error.
Result<void> check_http_endpoints(std::string_view text);

// Keeps the connection for its next request, for a minute at most, so that renewed certificates and addresses come into
// use. A request is sent again if its kept connection breaks before any answer. One thread at a time.
class HttpClient {
public:
    // A wrong endpoint is an error of each request.
    explicit HttpClient(std::string_view endpoints);

    Result<HttpResponse> request(std::string_view method, std::string_view target, std::string_view body = {},
                                 const HttpClientOptions& options = {});

    // GETs a streamed answer and passes each part to `take` as it arrives, until `take` returns false or the server
    // ends the stream properly. An answer with another status than 200 is returned as the error inside it.
    Result<void> get_stream(std::string_view target, const std::function<bool(std::string_view part)>& take,
                            const HttpClientOptions& options = {});

private:
    class Transfer;
    struct Cleanup {
        void operator()(void* easy) const;
    };
    Result<void> open();
    Result<HttpResponse> request_of_any(const std::string& method, const std::string& target, std::string_view body,
                                        const std::function<bool(std::string_view part)>* take,
                                        const HttpClientOptions& options);

    std::vector<std::string> endpoints_;
    std::size_t current_ = 0;
    std::unique_ptr<void, Cleanup> easy_;  // libcurl's handle, which has the connection
};

// Do the same on a connection of their own.
Result<HttpResponse> http_request(const std::string& endpoint, std::string_view method, std::string_view target,
                                  std::string_view body = {}, const HttpClientOptions& options = {});
Result<void> http_get_stream(const std::string& endpoint, std::string_view target,
                             const std::function<bool(std::string_view part)>& take,
                             const HttpClientOptions& options = {});

}  // namespace larder
