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

// Opens the file first, because the library's message for a missing file does not name it.
Result<void> use(const std::string& file, const char* what, error_code& failure) {
    if (failure) return fail(ErrorCode::invalid_argument, std::string(what) + " " + file + ": " + failure.message());
    return {};
}

Result<void> readable(const std::string& file, const char* what) {
    const auto content = read_file(file);
    if (!content) return std::unexpected(content.error().within(what));
    return {};
}

Result<void> trust(ssl::context& context, const std::string& ca_file) {
    if (auto there = readable(ca_file, "CA file"); !there) return there;
    error_code failure;
    context.load_verify_file(ca_file, failure);
    return use(ca_file, "CA file", failure);
}

Result<void> show(ssl::context& context, const std::string& certificate_file, const std::string& key_file) {
    if (auto there = readable(certificate_file, "certificate file"); !there) return there;
    if (auto there = readable(key_file, "key file"); !there) return there;
    error_code failure;
    context.use_certificate_chain_file(certificate_file, failure);
    if (auto used = use(certificate_file, "certificate file", failure); !used) return used;
    // Fails also if the key does not belong to the certificate.
    context.use_private_key_file(key_file, ssl::context::pem, failure);
    return use(key_file, "key file", failure);
}

}  // namespace

Result<std::shared_ptr<TlsContext>> make_tls_server(const TlsServerFiles& files) {
    auto made = std::make_shared<TlsContext>(ssl::context::tls_server);
    ssl::context& context = made->context;
    if (SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION) != 1) {
        return fail(ErrorCode::unsupported, "this OpenSSL has no TLS 1.2");
    }
    if (auto shown = show(context, files.certificate_file, files.key_file); !shown) {
        return std::unexpected(shown.error());
    }
    // Sessions are short and few; without resumption every connection is checked from the start.
    SSL_CTX_set_session_cache_mode(context.native_handle(), SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context.native_handle(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_num_tickets(context.native_handle(), 0);  // TLS 1.3 has an option of its own
    if (files.client_ca_file.empty()) return made;
    if (auto trusted = trust(context, files.client_ca_file); !trusted) return std::unexpected(trusted.error());
    SSL_CTX_set_client_CA_list(context.native_handle(), SSL_load_client_CA_file(files.client_ca_file.c_str()));
    error_code failure;
    context.set_verify_mode(
        files.client_certificate_required ? ssl::verify_peer | ssl::verify_fail_if_no_peer_cert : ssl::verify_peer,
        failure);
    if (auto used = use(files.client_ca_file, "CA file", failure); !used) return std::unexpected(used.error());
    return made;
}

std::string checked_common_name(const SSL* connection) {
    if (SSL_get_verify_result(connection) != X509_V_OK) return {};
    const std::unique_ptr<X509, void (*)(X509*)> certificate(SSL_get1_peer_certificate(connection), X509_free);
    if (!certificate) return {};
    const X509_NAME* subject = X509_get_subject_name(certificate.get());
    const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    if (at < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0) return {};
    unsigned char* utf8 = nullptr;
    const int bytes = ASN1_STRING_to_UTF8(&utf8, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
    if (bytes < 0) return {};
    std::string name(reinterpret_cast<const char*>(utf8), static_cast<std::size_t>(bytes));
    OPENSSL_free(utf8);
    return name.find('\0') == std::string::npos ? name : std::string();
}

}  // namespace larder
