#pragma once

// A request's target taken apart: "/v1/datasets/a%20b?full=1" into decoded path segments and query values.

#include <string_view>

#include "base/error.h"
#include "base/server/http_message.h"

namespace larder {

// Fills `path` and `query`.
Result<void> parse_http_target(std::string_view target, HttpRequest& request);

// "127.0.0.1:9464", "[::1]:0", "localhost:80".
struct HostPort {
    std::string host;
    std::uint16_t port = 0;
};
Result<HostPort> parse_host_port(std::string_view text);

// 127.0.0.0/8 and ::1: nobody but this machine gets there.
bool is_loopback(const std::string& ip_address);

}  // namespace larder
