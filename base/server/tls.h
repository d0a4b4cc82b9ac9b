#pragma once

// What a server or client needs for TLS, made once from PEM files and shared by its connections. TLS 1.2 at least, with
// the library's own choice of ciphers. Boost and OpenSSL stay out of this header.

#include <memory>
#include <string>

#include "base/error.h"

namespace larder {

class TlsContext;

struct TlsServerFiles {
    std::string certificate_file;  // the server's, then the chain up to a root
    std::string key_file;
    // Whose client certificates are believed; empty: none is asked for.
    std::string client_ca_file;
    // Who has none is not let in; else only believed where there is one.
    bool client_certificate_required = false;
};

// The error names the file and what is wrong with it. Any thread.
Result<std::shared_ptr<TlsContext>> make_tls_server(const TlsServerFiles& files);

}  // namespace larder
