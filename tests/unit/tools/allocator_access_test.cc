// How `larder` reaches an allocator over TCP: with TLS, tokens and certificates, against a fake server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/certificates.h"
#include "tests/support/http_service.h"
#include "tests/support/program.h"

namespace larder {
namespace {

using test::ProgramResult;
using ::testing::HasSubstr;

class AllocatorAccess : public ::testing::Test {
protected:
    void start(bool certificate_required) {
        const auto files = authority.issue("server", {.common_name = "server", .alternative_names = "IP:127.0.0.1"});
        const auto tls = make_tls_server({.certificate_file = files.certificate,
                                          .key_file = files.key,
                                          .client_ca_file = authority.file(),
                                          .client_certificate_required = certificate_required});
        ASSERT_TRUE(tls) << tls.error().message;
        // The answer's only job is named after the token or the certificate.
        service = std::make_unique<test::HttpService>(
            [](const HttpRequest& request, const HttpRespond& respond) {
                if (request.bearer_token.empty() && request.certificate_name.empty()) {
                    return respond(http_error(401, "unauthenticated", "this needs a token"));
                }
                respond({.body = R"({"plan":1,"jobs":[{"name":")" + request.bearer_token + request.certificate_name +
                                 R"("}]})"});
            },
            HttpServerOptions{}, *tls);
        endpoint = "https://127.0.0.1:" + std::to_string(service->port);
    }
    ProgramResult ask(std::vector<std::string> options,
                      std::vector<std::pair<std::string, std::string>> environment = {}) {
        options.insert(options.begin(), {LARDER_PROGRAM, "job", "ls", "--json"});
        environment.emplace_back("LARDER_ALLOCATOR", endpoint);
        return test::run_program(options, environment);
    }
    std::string file(const std::string& name, const std::string& text) {
        std::ofstream(directory / name) << text;
        return directory / name;
    }

    test::TempDirectory directory;
    test::CertificateAuthority authority{directory.path().string(), "authority"};
    std::unique_ptr<test::HttpService> service;
    std::string endpoint;
};

TEST_F(AllocatorAccess, TokenFromFileIsSent) {
    start(false);
    const std::string token = file("token", "secret-of-an-operator\nmore\n");
    const ProgramResult shown = ask({"--allocator-ca", authority.file(), "--allocator-token-file", token});
    EXPECT_EQ(shown.exit_code, 0) << shown.errors;
    EXPECT_THAT(shown.output, HasSubstr("secret-of-an-operator\""));
    const ProgramResult by_environment =
        ask({}, {{"LARDER_ALLOCATOR_CA", authority.file()}, {"LARDER_ALLOCATOR_TOKEN_FILE", token}});
    EXPECT_EQ(by_environment.exit_code, 0) << by_environment.errors;
}

TEST_F(AllocatorAccess, ClientCertificateIsSent) {
    start(true);
    const auto own = authority.issue("own", {.common_name = "ops", .alternative_names = ""});
    const ProgramResult shown = ask(
        {"--allocator-ca", authority.file(), "--allocator-certificate", own.certificate, "--allocator-key", own.key});
    EXPECT_EQ(shown.exit_code, 0) << shown.errors;
    EXPECT_THAT(shown.output, HasSubstr("\"ops\""));
    EXPECT_NE(ask({"--allocator-ca", authority.file()}).exit_code, 0);
}

TEST_F(AllocatorAccess, RefusalNamesItsCause) {
    start(false);
    const ProgramResult without = ask({"--allocator-ca", authority.file()});
    EXPECT_EQ(without.exit_code, 5) << without.errors;
    EXPECT_THAT(without.errors, HasSubstr("this needs a token"));
    const ProgramResult untrusted = ask({});
    EXPECT_NE(untrusted.exit_code, 0);
    EXPECT_THAT(untrusted.errors, HasSubstr("certificate verify failed"));
    EXPECT_THAT(untrusted.errors, HasSubstr("--allocator-ca or $LARDER_ALLOCATOR_CA names the CA file"));
    // The certificate has the name 127.0.0.1 only.
    std::string by_another_name = endpoint;
    by_another_name.replace(endpoint.find("://") + 3, endpoint.rfind(':') - endpoint.find("://") - 3, "localhost");
    const ProgramResult other = test::run_program(
        {LARDER_PROGRAM, "job", "ls", "--allocator", by_another_name, "--allocator-ca", authority.file()});
    EXPECT_NE(other.exit_code, 0);
    EXPECT_THAT(other.errors, HasSubstr("certificate is for another host: for IP Address:127.0.0.1"));
    EXPECT_THAT(other.errors, HasSubstr("localhost"));
    EXPECT_THAT(other.errors, testing::Not(HasSubstr("CA file")));
    const ProgramResult no_file = ask({"--allocator-token-file", "/nowhere/token"});
    EXPECT_EQ(no_file.exit_code, 4) << no_file.errors;
    EXPECT_THAT(no_file.errors, HasSubstr("/nowhere/token"));
    const ProgramResult empty = ask({"--allocator-token-file", file("empty", "\n")});
    EXPECT_EQ(empty.exit_code, 2);
    EXPECT_THAT(empty.errors, HasSubstr("has no token"));
}

}  // namespace
}  // namespace larder
