#pragma once

// An HTTP request and its answer as plain values. An HttpServer's handler takes and returns them; the client sends and
// receives them. Nothing here knows about sockets.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace larder {

class HttpStream;

// The process at the other end of a Unix socket, as the kernel reports it (SO_PEERCRED).
struct PeerCredentials {
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::int32_t pid = 0;
};

struct HttpRequest {
    std::string method;                        // "GET"
    std::vector<std::string> path;             // percent-decoded: "/v1/datasets/a%20b" is {"v1", "datasets", "a b"}
    std::map<std::string, std::string> query;  // percent-decoded
    std::string body;
    std::optional<PeerCredentials> peer;  // none over TCP: serve public data only, unless `admit` knows the caller
    std::string peer_address;             // over TCP: "10.0.0.7"
    std::string bearer_token;             // from "Authorization: Bearer ..."; not checked
    std::string host;                     // from "Host:", with the port
    std::string origin;                   // from "Origin:", "https://HOST:PORT"; a browser says whose page asks
    std::string fetch_site;               // from "Sec-Fetch-Site:", "same-origin"; often missing over plain HTTP
    bool is_from_browser = false;         // as its headers have it
    bool host_is_certified = false;       // over TLS: the server's certificate is for `host`
    std::string certificate_name;         // the common name of a client certificate that was checked
    // Filled in by `admit` once the caller is known: a name, a role, and whether the caller may act for others.
    std::string authenticated_as;
    std::string role;  // of the caller, as people read it
    bool is_operator = false;
    bool is_agent = false;  // of a cluster manager: it submits for all users of that
    // Set if the caller is a node, whose name is then `authenticated_as`: where its peers may be told to reach it.
    struct NodeBinding {
        std::string peer_endpoint;  // empty: nowhere
        std::string peer_group;
    };
    std::optional<NodeBinding> node;
    // For a handler that answers late: registers a callback, called once on the context's thread if the client goes
    // before the answer. Empty if the request did not come from a server.
    std::function<void(std::function<void()> gone)> on_gone;
};

// The status of an answer from a server that is not in charge, while another one may be.
inline constexpr unsigned kHttpMisdirected = 421;

struct HttpResponse {
    unsigned status = 200;
    std::string content_type = "application/json";
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers;
    // Continues after `body` until either side ends it; see base/server/http_stream.h.
    std::shared_ptr<HttpStream> stream;
};

// Returns {"error": {"code": "not_found", "message": "..."}} with the status that fits the code.
HttpResponse http_error(const Error& error);
HttpResponse http_error(unsigned status, std::string_view code, std::string_view message);
unsigned http_status_of(ErrorCode code);

// Returns the Error inside an answer made by http_error, or an Error of the closest code if the body is something else.
Error error_of_response(const HttpResponse& response);

}  // namespace larder
