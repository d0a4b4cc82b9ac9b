#include "cache/remote/google_assertion.h"

#include <boost/json.hpp>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <memory>

#include "base/server/json_text.h"
#include "cache/remote/base64.h"

namespace larder::cache {
namespace {

namespace json = boost::json;

constexpr std::int64_t kAssertionValid_s = 3600;

struct FreeKey {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

// Null if the text is not a private key, or if the key has a passphrase.
std::unique_ptr<EVP_PKEY, FreeKey> parse_private_key(const std::string& pem) {
    const std::unique_ptr<BIO, int (*)(BIO*)> text(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
    // Without this, OpenSSL would ask for a passphrase on the terminal.
    const auto no_passphrase = [](char*, int, int, void*) { return -1; };
    return std::unique_ptr<EVP_PKEY, FreeKey>(PEM_read_bio_PrivateKey(text.get(), nullptr, no_passphrase, nullptr));
}

// Returns "" if the key cannot sign.
std::string sign_sha256(EVP_PKEY* key, std::string_view text) {
    const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    std::size_t signature_bytes = 0;
    if (EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key) != 1 ||
        EVP_DigestSign(context.get(), nullptr, &signature_bytes, bytes, text.size()) != 1) {
        return "";
    }
    std::string signature(signature_bytes, '\0');
    auto* into = reinterpret_cast<unsigned char*>(signature.data());
    if (EVP_DigestSign(context.get(), into, &signature_bytes, bytes, text.size()) != 1) return "";
    signature.resize(signature_bytes);
    return signature;
}

}  // namespace

Result<ServiceAccount> parse_service_account(std::string_view text, const std::string& name) {
    boost::system::error_code failure;
    const json::value value = json::parse(json::string_view(text.data(), text.size()), failure);
    const json::object* object = failure ? nullptr : value.if_object();
    if (object == nullptr) return fail(ErrorCode::invalid_argument, name + " is not a JSON object");
    const auto field = [&](const char* key) -> std::string {
        const json::value* found = object->if_contains(key);
        const json::string* as_text = found == nullptr ? nullptr : found->if_string();
        return as_text == nullptr ? "" : std::string(*as_text);
    };
    if (field("type") != "service_account") {
        return fail(ErrorCode::unsupported,
                    name + " is not the key of a service account, whose type is " +
                        "\"service_account\": gcloud iam service-accounts keys create makes one");
    }
    ServiceAccount account{.client_email = field("client_email"),
                           .private_key_id = field("private_key_id"),
                           .private_key = field("private_key"),
                           .token_uri = field("token_uri")};
    if (account.token_uri.empty()) account.token_uri = "https://oauth2.googleapis.com/token";
    if (account.client_email.empty() || account.private_key.empty()) {
        return fail(ErrorCode::invalid_argument, name + " has no client_email or no private_key");
    }
    return account;
}

Result<std::string> make_google_assertion(const ServiceAccount& account, std::string_view scope,
                                          std::int64_t now_unix_s) {
    const auto key = parse_private_key(account.private_key);
    if (key == nullptr || EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_RSA) {
        return fail(ErrorCode::invalid_argument, "the private_key of " + account.client_email + " is not an RSA key");
    }
    const json::object header{{"alg", "RS256"}, {"typ", "JWT"}, {"kid", account.private_key_id}};
    const json::object claims{{"iss", account.client_email},
                              {"scope", json::string(scope.data(), scope.size())},
                              {"aud", account.token_uri},
                              {"iat", now_unix_s},
                              {"exp", now_unix_s + kAssertionValid_s}};
    std::string assertion = base64url_encode(json_text(header)) + "." + base64url_encode(json_text(claims));
    const std::string signature = sign_sha256(key.get(), assertion);
    if (signature.empty()) {
        return fail(ErrorCode::invalid_argument, "the private_key of " + account.client_email + " cannot sign");
    }
    return assertion + "." + base64url_encode(signature);
}

}  // namespace larder::cache
