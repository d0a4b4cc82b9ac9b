#pragma once

// Parsing of a request's target: "/v1/datasets/a%20b?full=1" into decoded path segments and query values. Also of
// addresses.

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/server/http_message.h"

namespace larder {

// Fills in the request's `path` and `query`.
Result<void> parse_http_target(std::string_view target, HttpRequest& request);

// A host and port, parsed from "127.0.0.1:9464", "[::1]:0" or "localhost:80".
struct HostPort {
    std::string host;
    std::uint16_t port = 0;
};
Result<HostPort> parse_host_port(std::string_view text);
// True for "http://HOST:PORT" and "https://HOST:PORT", with no more than that: an endpoint that one node may name to
// others.
bool is_tcp_endpoint(std::string_view text);

// True if a Host header names an IP address, localhost or this machine. Its port does not matter.
bool is_own_host(std::string_view host);
// Returns "by an IP address, as localhost or by this machine's name NAME", for messages.
std::string own_host_text();
// True if `origin`, "https://HOST:PORT", has the host and port of a Host header.
bool is_origin_of(std::string_view origin, std::string_view host);

// True for 127.0.0.0/8 and ::1: only this machine reaches them.
bool is_loopback(const std::string& ip_address);

}  // namespace larder
