#pragma once

// A request and its answer as plain values: what a handler of an HttpServer is given and gives, and what the client
// sends and gets. Nothing here knows of sockets.

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

// Who is at the other end of a Unix socket, as the kernel says (SO_PEERCRED).
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
    std::optional<PeerCredentials> peer;  // none over TCP: answer only what anyone may read, or what `admit` let in
    std::string peer_address;             // over TCP: "10.0.0.7"
    std::string bearer_token;             // of "Authorization: Bearer ..."; as it came, not checked
    std::string certificate_name;         // the common name of a client certificate that was checked
    std::string authenticated_as;         // filled in by `admit`, once it knows who this is
    // For a handler that answers late: calls back, once and on the context's thread, when the client goes before it is
    // answered. Empty where the request did not come from a server.
    std::function<void(std::function<void()> gone)> on_gone;
};

struct HttpResponse {
    unsigned status = 200;
    std::string content_type = "application/json";
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers;
    // Goes on after `body`, until either side ends it; see base/server/http_stream.h.
    std::shared_ptr<HttpStream> stream;
};

// {"error": {"code": "not_found", "message": "..."}} with the status that fits the code.
HttpResponse http_error(const Error& error);
HttpResponse http_error(unsigned status, std::string_view code, std::string_view message);
unsigned http_status_of(ErrorCode code);

// The Error inside an answer made by http_error; an Error of the closest code where the body is something else.
Error error_of_response(const HttpResponse& response);

}  // namespace larder
