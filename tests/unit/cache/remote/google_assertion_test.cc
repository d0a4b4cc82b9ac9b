#include "cache/remote/google_assertion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <memory>

#include "cache/remote/base64.h"

namespace larder::cache {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;

Key make_rsa_key() {
    return {EVP_RSA_gen(2048), EVP_PKEY_free};
}

std::string pem_of(EVP_PKEY* key) {
    const std::unique_ptr<BIO, int (*)(BIO*)> text(BIO_new(BIO_s_mem()), BIO_free);
    PEM_write_bio_PrivateKey(text.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
    char* data = nullptr;
    const long length = BIO_get_mem_data(text.get(), &data);
    return {data, static_cast<std::size_t>(length)};
}

std::string decoded(std::string part) {
    for (char& c : part) c = c == '-' ? '+' : c == '_' ? '/' : c;
    part.resize((part.size() + 3) / 4 * 4, '=');
    return base64_decode(part).value();
}

TEST(GoogleAssertion, IsAJwtThatThePublicKeyVerifies) {
    const Key key = make_rsa_key();
    const auto assertion = make_google_assertion({.client_email = "reader@project",
                                                  .private_key_id = "k1",
                                                  .private_key = pem_of(key.get()),
                                                  .token_uri = "https://tokens/token"},
                                                 "read", 1000);
    ASSERT_TRUE(assertion) << assertion.error().message;
    const std::size_t first = assertion->find('.');
    const std::size_t last = assertion->rfind('.');
    EXPECT_EQ(decoded(assertion->substr(0, first)), R"({"alg":"RS256","typ":"JWT","kid":"k1"})");
    EXPECT_EQ(decoded(assertion->substr(first + 1, last - first - 1)),
              R"({"iss":"reader@project","scope":"read","aud":"https://tokens/token","iat":1000,"exp":4600})");
    const std::string text = assertion->substr(0, last);
    const std::string signature = decoded(assertion->substr(last + 1));
    const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
    ASSERT_EQ(EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key.get()), 1);
    EXPECT_EQ(EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                               signature.size(), reinterpret_cast<const unsigned char*>(text.data()), text.size()),
              1);
}

TEST(GoogleAssertion, KeyOfAnotherKindIsRefusedWithoutQuotingIt) {
    const Key curve(EVP_EC_gen("P-256"), EVP_PKEY_free);
    for (const std::string& key : {std::string("s3cret"), std::string(), pem_of(curve.get())}) {
        const auto assertion = make_google_assertion({.client_email = "reader@project",
                                                      .private_key_id = "",
                                                      .private_key = key,
                                                      .token_uri = "https://tokens/token"},
                                                     "read", 0);
        ASSERT_FALSE(assertion);
        EXPECT_EQ(assertion.error().message, "the private_key of reader@project is not an RSA key");
    }
}

TEST(ServiceAccount, IsReadFromItsFile) {
    const auto account = parse_service_account(
        R"({"type": "service_account", "client_email": "a@b", "private_key_id": "1", "private_key": "k",
            "token_uri": "http://t", "project_id": "p"})",
        "f.json");
    ASSERT_TRUE(account) << account.error().message;
    EXPECT_EQ(account->client_email, "a@b");
    EXPECT_EQ(account->private_key, "k");
    EXPECT_EQ(account->token_uri, "http://t");
    EXPECT_EQ(
        parse_service_account(R"({"type":"service_account","client_email":"a","private_key":"k"})", "")->token_uri,
        "https://oauth2.googleapis.com/token");
}

TEST(ServiceAccount, OtherFilesAreRefusedWithoutQuotingThem) {
    const auto message = [](std::string_view text) {
        const auto account = parse_service_account(text, "f.json");
        return account ? std::string() : account.error().message;
    };
    EXPECT_THAT(message("s3cret"), AllOf(HasSubstr("f.json is not a JSON object"), Not(HasSubstr("s3cret"))));
    EXPECT_THAT(message(R"({"type": "authorized_user", "refresh_token": "s3cret"})"),
                AllOf(HasSubstr("not the key of a service account"), Not(HasSubstr("s3cret"))));
    EXPECT_THAT(message(R"({"type": "service_account", "private_key": "s3cret"})"),
                AllOf(HasSubstr("no client_email"), Not(HasSubstr("s3cret"))));
}

}  // namespace
}  // namespace larder::cache
