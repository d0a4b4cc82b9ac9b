#include "tests/support/certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <stdexcept>

namespace larder::test {
namespace {

using Key = std::shared_ptr<EVP_PKEY>;
using Certificate = std::shared_ptr<X509>;

void must(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(std::string("certificates: ") + what);
}

Key make_key() {
    Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    must(key != nullptr, "no key");
    return key;
}

void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
    must(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, value.c_str());
    X509_EXTENSION_free(extension);
}

Certificate make_certificate(EVP_PKEY* key, const CertificateOptions& options) {
    static long serial = 0;
    Certificate certificate(X509_new(), X509_free);
    X509_set_version(certificate.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), options.valid_from_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), options.valid_until_s);
    X509_set_pubkey(certificate.get(), key);
    const auto* name = reinterpret_cast<const unsigned char*>(options.common_name.data());
    X509_NAME_add_entry_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, MBSTRING_UTF8,
                               const_cast<unsigned char*>(name), static_cast<int>(options.common_name.size()), -1, 0);
    return certificate;
}

template <typename Write>
void write_pem(const std::string& path, Write write) {
    std::FILE* file = std::fopen(path.c_str(), "wx");
    must(file != nullptr, path.c_str());
    const bool written = write(file) == 1;
    must(std::fclose(file) == 0 && written, path.c_str());
}

}  // namespace

CertificateAuthority::CertificateAuthority(std::string directory, const std::string& name)
    : directory_(std::move(directory)), file_(directory_ + "/" + name + ".pem"), key_(make_key()) {
    certificate_ = make_certificate(key_.get(), {.common_name = name});
    X509* own = certificate_.get();
    X509_set_issuer_name(own, X509_get_subject_name(own));
    add_extension(own, own, NID_basic_constraints, "critical,CA:TRUE");
    add_extension(own, own, NID_key_usage, "critical,keyCertSign,cRLSign");
    must(X509_sign(own, key_.get(), EVP_sha256()) > 0, "sign");
    write_pem(file_, [own](std::FILE* file) { return PEM_write_X509(file, own); });
}

CertificateAuthority::~CertificateAuthority() = default;

CertificateFiles CertificateAuthority::issue(const std::string& name, const CertificateOptions& options) {
    const Key key = make_key();
    const Certificate certificate = make_certificate(key.get(), options);
    X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
    if (!options.alternative_names.empty()) {
        add_extension(certificate.get(), certificate_.get(), NID_subject_alt_name, options.alternative_names);
    }
    must(X509_sign(certificate.get(), key_.get(), EVP_sha256()) > 0, "sign");
    CertificateFiles files{directory_ + "/" + name + ".pem", directory_ + "/" + name + ".key"};
    write_pem(files.certificate, [&](std::FILE* file) { return PEM_write_X509(file, certificate.get()); });
    write_pem(files.key, [&](std::FILE* file) {
        return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    return files;
}

}  // namespace larder::test
