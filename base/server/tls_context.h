#pragma once

// TlsContext with Boost.Asio's types, and OpenSSL helpers for TLS connections. Only base/server/*.cc includes this.

#include <boost/asio/ssl/context.hpp>

#include <memory>
#include <string>
#include <string_view>

#include "base/server/tls.h"

namespace larder {

class TlsContext {
public:
    explicit TlsContext(boost::asio::ssl::context::method method) : context(method) {}
    boost::asio::ssl::context context;
};

// Returns the common name of the peer's certificate that OpenSSL has checked; empty: none. A certificate with a NUL in
// the name, or with several common names, gives no name.
std::string checked_common_name(const ::ssl_st* connection);
// True if the server's own certificate is for the host of a Host header.
bool is_certified_host(const ::ssl_st* connection, std::string_view host);

}  // namespace larder
