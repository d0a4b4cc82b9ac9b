#pragma once

// TlsContext with Boost.Asio's types, and what TLS connections ask of OpenSSL. Only base/server/*.cc includes this.

#include <boost/asio/ssl/context.hpp>

#include <memory>
#include <string>

#include "base/server/http_client.h"
#include "base/server/tls.h"

namespace larder {

class TlsContext {
public:
    explicit TlsContext(boost::asio::ssl::context::method method) : context(method) {}
    boost::asio::ssl::context context;
};

// Trusts options.ca_file, or the system's authorities, and shows options.certificate_file where a server asks.
Result<std::shared_ptr<TlsContext>> make_tls_client(const HttpClientOptions& options);

// The common name of the certificate the peer has shown and OpenSSL has checked; empty: none. One with a NUL inside, or
// with several common names, names nobody.
std::string checked_common_name(const ::ssl_st* connection);

}  // namespace larder
