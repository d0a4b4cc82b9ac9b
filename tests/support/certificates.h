#pragma once

// Certificates for tests, made on the fly as PEM files in a directory: an authority, and the certificates it signs.

#include <memory>
#include <string>

struct evp_pkey_st;
struct x509_st;

namespace larder::test {

struct CertificateFiles {
    std::string certificate;
    std::string key;
};

struct CertificateOptions {
    std::string common_name;
    std::string alternative_names;  // "IP:127.0.0.1,DNS:localhost"; empty: none
    int valid_from_s = -3600;       // relative to now
    int valid_until_s = 3600;
};

class CertificateAuthority {
public:
    // Writes `name`.pem into `directory`.
    CertificateAuthority(std::string directory, const std::string& name);
    ~CertificateAuthority();

    std::string file() const { return file_; }
    // Signs a new certificate: `name`.pem and `name`.key.
    CertificateFiles issue(const std::string& name, const CertificateOptions& options);

private:
    std::string directory_;
    std::string file_;
    std::shared_ptr<evp_pkey_st> key_;
    std::shared_ptr<x509_st> certificate_;
};

}  // namespace larder::test
