#pragma once

// The certificates and settings of a TLS server, made once from PEM files and shared by its connections. The server
// speaks TLS 1.2 or newer, with the library's own choice of ciphers. Boost and OpenSSL stay out of this header.

#include <memory>
#include <string>

#include "base/error.h"

namespace larder {

class TlsContext;

struct TlsServerFiles {
    std::string certificate_file;  // the server's certificate, then the chain up to a root
    std::string key_file;
    // The authority of client certificates; empty: no client certificate is asked for.
    std::string client_ca_file;
    // True: a client without a certificate is refused. False: a certificate is checked only if there is one.
    bool client_certificate_required = false;
};

// Makes the TLS context. The error names the file and what is wrong with it. Any thread.
Result<std::shared_ptr<TlsContext>> make_tls_server(const TlsServerFiles& files);

}  // namespace larder
