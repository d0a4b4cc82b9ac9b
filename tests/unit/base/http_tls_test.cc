// HTTP over TLS with real certificates: which ones each side accepts, and the errors for the others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/server/http.h"
#include "tests/support/certificates.h"
#include "tests/support/http_service.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

class HttpTls : public ::testing::Test {
protected:
    test::TempDirectory directory;
    test::CertificateAuthority authority{directory.path().string(), "authority"};
    test::CertificateFiles server_files =
        authority.issue("server", {.common_name = "server", .alternative_names = "IP:127.0.0.1,DNS:localhost"});
    std::unique_ptr<test::HttpService> service;

    void start(TlsServerFiles files = {}) {
        files.certificate_file = server_files.certificate;
        files.key_file = server_files.key;
        const auto tls = make_tls_server(files);
        ASSERT_TRUE(tls) << tls.error().message;
        service = std::make_unique<test::HttpService>(
            [](const HttpRequest& request, const HttpRespond& respond) {
                if (request.path == std::vector<std::string>{"host"}) {
                    return respond({.body = request.host_is_certified ? "certified" : "not certified"});
                }
                respond({.content_type = "text/plain",
                         .body = request.certificate_name + "|" + request.bearer_token + "|" + request.peer_address +
                                 "|" + request.body});
            },
            HttpServerOptions{}, *tls);
    }
    std::string endpoint(const std::string& host = "127.0.0.1") const {
        return "https://" + host + ":" + std::to_string(service->port);
    }
    HttpClientOptions without_certificate() const { return {.ca_file = authority.file()}; }
    HttpClientOptions with_certificate(const test::CertificateFiles& files) const {
        return {.ca_file = authority.file(), .certificate_file = files.certificate, .key_file = files.key};
    }
};

TEST_F(HttpTls, CarriesRequestsAndAnswers) {
    start();
    HttpClientOptions options = without_certificate();
    options.bearer_token = "secret";
    const std::string body(300'000, 'b');
    const auto answer = http_request(endpoint(), "POST", "/x", body, options);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->body, "|secret|127.0.0.1|" + body);
    const auto by_name = http_request(endpoint("localhost"), "GET", "/", {}, without_certificate());
    ASSERT_TRUE(by_name) << by_name.error().message;
}

TEST_F(HttpTls, HandlerIsToldWhetherTheCertificateIsForTheHost) {
    start();
    EXPECT_EQ(http_request(endpoint("localhost"), "GET", "/host", {}, without_certificate())->body, "certified");
    EXPECT_EQ(http_request(endpoint(), "GET", "/host", {}, without_certificate())->body, "not certified")
        << "an address is no name";
}

TEST_F(HttpTls, ServerOfUnknownAuthorityIsRefused) {
    start();
    const test::CertificateAuthority other(directory.path().string(), "other");
    const auto answer = http_request(endpoint(), "GET", "/", {}, {.ca_file = other.file()});
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::protocol);
    EXPECT_THAT(answer.error().message, HasSubstr("certificate verify failed"));
    EXPECT_FALSE(http_request(endpoint(), "GET", "/")) << "nor do the system's authorities vouch for it";
}

TEST_F(HttpTls, CaFileReplacesTheSystemsAuthorities) {
    start();
    const test::CertificateAuthority other(directory.path().string(), "other");
    ::setenv("SSL_CERT_FILE", authority.file().c_str(), 1);
    EXPECT_TRUE(http_request(endpoint(), "GET", "/"));
    EXPECT_FALSE(http_request(endpoint(), "GET", "/", {}, {.ca_file = other.file()}));
    ::unsetenv("SSL_CERT_FILE");
}

TEST_F(HttpTls, ConnectionIsKeptForTheSameCredentialsOnly) {
    start({.client_ca_file = authority.file()});
    const auto node = authority.issue("node", {.common_name = "node-7"});
    HttpClient client(endpoint());
    EXPECT_EQ(client.request("GET", "/", {}, with_certificate(node))->body, "node-7||127.0.0.1|");
    EXPECT_EQ(client.request("GET", "/", {}, without_certificate())->body, "||127.0.0.1|");
}

TEST_F(HttpTls, CertificateForAnotherHostIsRefused) {
    server_files = authority.issue("elsewhere", {.common_name = "127.0.0.1", .alternative_names = "DNS:elsewhere"});
    start();
    const auto answer = http_request(endpoint(), "GET", "/", {}, without_certificate());
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::protocol);
}

TEST_F(HttpTls, ExpiredCertificateIsRefused) {
    server_files = authority.issue(
        "old",
        {.common_name = "old", .alternative_names = "IP:127.0.0.1", .valid_from_s = -7200, .valid_until_s = -3600});
    start();
    const auto answer = http_request(endpoint(), "GET", "/", {}, without_certificate());
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::protocol);
}

TEST_F(HttpTls, HttpToATlsPortErrorSuggestsHttps) {
    start();
    const std::string host_port = "127.0.0.1:" + std::to_string(service->port);
    for (const std::string& address : {"http://" + host_port, host_port}) {
        const auto answer = http_request(address, "GET", "/", {});
        ASSERT_FALSE(answer);
        EXPECT_EQ(answer.error().code, ErrorCode::invalid_argument);
        EXPECT_EQ(answer.error().message, address + ": the server speaks TLS: write https://" + host_port);
        const auto stream = http_get_stream(address, "/", [](std::string_view) { return true; }, {});
        ASSERT_FALSE(stream);
        EXPECT_THAT(stream.error().message, HasSubstr("write https://" + host_port));
    }
    EXPECT_TRUE(http_request(endpoint(), "GET", "/", {}, without_certificate())) << "and the server goes on";
}

TEST_F(HttpTls, HttpsToAPlainPortErrorSuggestsHttp) {
    service = std::make_unique<test::HttpService>([](const HttpRequest&, const HttpRespond& respond) { respond({}); },
                                                  HttpServerOptions{}, nullptr);
    const auto answer = http_request(endpoint(), "GET", "/", {}, without_certificate());
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::protocol);
    EXPECT_THAT(answer.error().message, HasSubstr("the server speaks plain HTTP: write http://"));
}

TEST_F(HttpTls, OnlyAVerifiedClientCertificateGivesAName) {
    start({.client_ca_file = authority.file()});
    const auto node = authority.issue("node", {.common_name = "node-7"});
    EXPECT_EQ(http_request(endpoint(), "GET", "/", {}, with_certificate(node))->body, "node-7||127.0.0.1|");
    EXPECT_EQ(http_request(endpoint(), "GET", "/", {}, without_certificate())->body, "||127.0.0.1|")
        << "a client without a certificate is let in, without a name";
    test::CertificateAuthority other(directory.path().string(), "other");
    const auto forged = other.issue("forged", {.common_name = "node-7"});
    EXPECT_FALSE(http_request(endpoint(), "GET", "/", {}, with_certificate(forged)));
}

TEST_F(HttpTls, MissingRequiredClientCertificateIsRefused) {
    start({.client_ca_file = authority.file(), .client_certificate_required = true});
    EXPECT_FALSE(http_request(endpoint(), "GET", "/", {}, without_certificate()));
    const auto node = authority.issue("node", {.common_name = "node-7"});
    EXPECT_TRUE(http_request(endpoint(), "GET", "/", {}, with_certificate(node)));
}

TEST_F(HttpTls, RenewedCertificateIsUsedFromThenOn) {
    start();
    test::CertificateAuthority other(directory.path().string(), "other");
    const auto renewed = other.issue("renewed", {.common_name = "server", .alternative_names = "IP:127.0.0.1"});
    const auto tls = make_tls_server({.certificate_file = renewed.certificate, .key_file = renewed.key});
    ASSERT_TRUE(tls);
    service->on_thread([&] { service->server().renew_tls(*tls); });
    EXPECT_FALSE(http_request(endpoint(), "GET", "/", {}, without_certificate()));
    EXPECT_TRUE(http_request(endpoint(), "GET", "/", {}, {.ca_file = other.file()}));
}

TEST_F(HttpTls, InvalidFileErrorNamesTheFile) {
    const auto key = authority.issue("other-key", {.common_name = "x"}).key;
    const auto mismatched = make_tls_server({.certificate_file = server_files.certificate, .key_file = key});
    ASSERT_FALSE(mismatched);
    EXPECT_THAT(mismatched.error().message, HasSubstr(key));
    const auto missing = make_tls_server({.certificate_file = directory / "lost.pem", .key_file = key});
    ASSERT_FALSE(missing);
    EXPECT_THAT(missing.error().message, HasSubstr("lost.pem"));
    std::ofstream(directory / "junk.pem") << "junk";
    const auto junk = make_tls_server({.certificate_file = server_files.certificate,
                                       .key_file = server_files.key,
                                       .client_ca_file = directory / "junk.pem"});
    ASSERT_FALSE(junk);
    EXPECT_THAT(junk.error().message, HasSubstr("junk.pem"));
    start();
    const auto no_ca = http_request(endpoint(), "GET", "/", {}, {.ca_file = directory / "lost.pem"});
    ASSERT_FALSE(no_ca);
    EXPECT_THAT(no_ca.error().message, HasSubstr("lost.pem"));
    const std::string lost = directory / "lost-key.pem";
    const auto no_key = http_request(endpoint(), "GET", "/", {}, with_certificate({server_files.certificate, lost}));
    ASSERT_FALSE(no_key);
    EXPECT_THAT(no_key.error().message, HasSubstr(lost));
}

}  // namespace
}  // namespace larder
