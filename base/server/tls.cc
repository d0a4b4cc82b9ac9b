#include "base/server/tls.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <memory>

#include "base/file.h"
#include "base/server/tls_context.h"

namespace larder {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

Result<void> check_loaded(const std::string& file, const char* what, error_code& failure) {
    if (failure) return fail(ErrorCode::invalid_argument, std::string(what) + " " + file + ": " + failure.message());
    return {};
}

// Called before the library opens the file, because its message for a missing file does not name the file.
Result<void> check_readable(const std::string& file, const char* what) {
    const auto content = read_file(file);
    if (!content) return std::unexpected(content.error().within(what));
    return {};
}

Result<void> load_authorities(ssl::context& context, const std::string& ca_file) {
    if (auto is_readable = check_readable(ca_file, "CA file"); !is_readable) return is_readable;
    error_code failure;
    context.load_verify_file(ca_file, failure);
    return check_loaded(ca_file, "CA file", failure);
}

Result<void> load_certificate(ssl::context& context, const std::string& certificate_file, const std::string& key_file) {
    if (auto is_readable = check_readable(certificate_file, "certificate file"); !is_readable) return is_readable;
    if (auto is_readable = check_readable(key_file, "key file"); !is_readable) return is_readable;
    error_code failure;
    context.use_certificate_chain_file(certificate_file, failure);
    if (auto loaded = check_loaded(certificate_file, "certificate file", failure); !loaded) return loaded;
    // Fails also if the key does not belong to the certificate.
    context.use_private_key_file(key_file, ssl::context::pem, failure);
    return check_loaded(key_file, "key file", failure);
}

}  // namespace

Result<std::shared_ptr<TlsContext>> make_tls_server(const TlsServerFiles& files) {
    auto server = std::make_shared<TlsContext>(ssl::context::tls_server);
    ssl::context& context = server->context;
    if (SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION) != 1) {
        return fail(ErrorCode::unsupported, "this OpenSSL has no TLS 1.2");
    }
    if (auto loaded = load_certificate(context, files.certificate_file, files.key_file); !loaded) {
        return std::unexpected(loaded.error());
    }
    // Sessions are short and few; without resumption every connection is checked from the start.
    SSL_CTX_set_session_cache_mode(context.native_handle(), SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context.native_handle(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_num_tickets(context.native_handle(), 0);  // TLS 1.3 has an option of its own
    if (files.client_ca_file.empty()) return server;
    if (auto loaded = load_authorities(context, files.client_ca_file); !loaded) return std::unexpected(loaded.error());
    SSL_CTX_set_client_CA_list(context.native_handle(), SSL_load_client_CA_file(files.client_ca_file.c_str()));
    error_code failure;
    context.set_verify_mode(
        files.client_certificate_required ? ssl::verify_peer | ssl::verify_fail_if_no_peer_cert : ssl::verify_peer,
        failure);
    if (auto loaded = check_loaded(files.client_ca_file, "CA file", failure); !loaded)
        return std::unexpected(loaded.error());
    return server;
}

std::string checked_common_name(const SSL* connection) {
    if (SSL_get_verify_result(connection) != X509_V_OK) return {};
    const std::unique_ptr<X509, void (*)(X509*)> certificate(SSL_get1_peer_certificate(connection), X509_free);
    if (!certificate) return {};
    const X509_NAME* subject = X509_get_subject_name(certificate.get());
    const int index = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    if (index < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, index) >= 0) return {};
    unsigned char* utf8 = nullptr;
    const int bytes = ASN1_STRING_to_UTF8(&utf8, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, index)));
    if (bytes < 0) return {};
    std::string name(reinterpret_cast<const char*>(utf8), static_cast<std::size_t>(bytes));
    OPENSSL_free(utf8);
    return name.find('\0') == std::string::npos ? name : std::string();
}

bool is_certified_host(const SSL* connection, std::string_view host) {
    const std::string_view name = host.substr(0, host.find(':'));
    X509* const certificate = SSL_get_certificate(connection);
    return certificate != nullptr && !name.empty() &&
           X509_check_host(certificate, name.data(), name.size(), 0, nullptr) == 1;
}

}  // namespace larder
