// Answers that a remote over HTTP must not give: bytes without a validator where one was indexed, and redirects to
// another scheme or to addresses that trust whoever is near.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "cache/remote/http_origin.h"
#include "cache/remote/http_transfers.h"
#include "cache/remote/redirect_rule.h"
#include "cache/remote/remote_url.h"
#include "tests/support/http_service.h"

namespace larder::cache {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kObject = "the bytes of an object";

void answer_by_path(const HttpRequest& request, const HttpRespond& respond) {
    const std::string path = request.path.empty() ? "" : request.path[0];
    const auto redirect = [&](const std::string& to) {
        respond({.status = 302, .body = "", .headers = {{"Location", to}}});
    };
    if (path == "to-object") return redirect("/object");
    if (path == "to-https") return redirect("https://localhost:1/object");
    if (path == "to-ftp") return redirect("ftp://localhost:1/object");
    if (path == "to-metadata") return redirect("http://169.254.169.254/latest/meta-data/");
    if (path == "to-metadata-ipv6") return redirect("http://[fe80::1]/object");
    HttpResponse object{.body = std::string(kObject)};
    if (path != "without-validator") object.headers.emplace_back("ETag", "\"1\"");
    respond(object);
}

class HttpRefusals : public ::testing::Test {
protected:
    HttpGet get(const std::string& path, std::int64_t tag = 0) {
        root_ =
            make_http_root(parse_remote_url("http://127.0.0.1:" + std::to_string(service_.port)).value(), {}).value();
        HttpGet get{.origin = root_.origin.get(),
                    .url = root_.url + "/" + path,
                    .ask = HttpRequestKind::whole,
                    .into = std::as_writable_bytes(std::span(bytes_)),
                    .object_bytes = kObject.size(),
                    .tag = tag,
                    .retry_for_ns = 1'000'000'000};
        transfers_->run(get);
        return get;
    }
    std::string_view bytes() const { return {bytes_.data(), bytes_.size()}; }

    test::HttpService service_{answer_by_path};
    HttpRoot root_;
    std::unique_ptr<HttpTransfers> transfers_ = std::move(HttpTransfers::start({}).value());
    std::array<char, kObject.size()> bytes_{};
};

TEST_F(HttpRefusals, AnswerWithTheIndexedValidatorIsTaken) {
    EXPECT_EQ(get("object", tag_of_version("\"1\"")).outcome, HttpOutcome::ok);
    EXPECT_EQ(bytes(), kObject);
}

TEST_F(HttpRefusals, AnswerWithoutAValidatorCountsAsChangedIfOneWasIndexed) {
    const HttpGet refused = get("without-validator", tag_of_version("\"1\""));
    EXPECT_EQ(refused.outcome, HttpOutcome::changed);
    EXPECT_THAT(refused.message, HasSubstr("neither ETag nor Last-Modified"));
    EXPECT_NE(bytes(), kObject);
}

TEST_F(HttpRefusals, AnswerWithoutAValidatorIsTakenIfNoneWasIndexed) {
    EXPECT_EQ(get("without-validator").outcome, HttpOutcome::ok);
    EXPECT_EQ(bytes(), kObject);
}

TEST_F(HttpRefusals, RedirectOnTheSameServerIsFollowed) {
    EXPECT_EQ(get("to-object").outcome, HttpOutcome::ok);
    EXPECT_EQ(bytes(), kObject);
}

TEST_F(HttpRefusals, RedirectToAnotherSchemeIsRefusedAtOnce) {
    for (const char* path : {"to-https", "to-ftp"}) {
        const HttpGet refused = get(path);
        EXPECT_EQ(refused.outcome, HttpOutcome::failed) << path;
        EXPECT_EQ(refused.system_errno, EACCES) << path;
        EXPECT_EQ(refused.attempts, 1u) << path;
        EXPECT_THAT(refused.message, HasSubstr("a redirect to another scheme"));
    }
}

TEST_F(HttpRefusals, RedirectToALinkLocalAddressIsRefusedAtOnce) {
    for (const char* path : {"to-metadata", "to-metadata-ipv6"}) {
        const HttpGet refused = get(path);
        EXPECT_EQ(refused.outcome, HttpOutcome::failed) << path;
        EXPECT_EQ(refused.system_errno, EACCES) << path;
        EXPECT_EQ(refused.attempts, 1u) << path;
        EXPECT_THAT(refused.message, HasSubstr("redirects to a link-local or loopback address"));
    }
}

TEST(RedirectRule, KnowsTheKindsOfAddresses) {
    const auto kind_of_ipv4 = [](const char* text) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        EXPECT_EQ(::inet_pton(AF_INET, text, &address.sin_addr), 1) << text;
        return kind_of_address(reinterpret_cast<const sockaddr&>(address));
    };
    const auto kind_of_ipv6 = [](const char* text) {
        sockaddr_in6 address{};
        address.sin6_family = AF_INET6;
        EXPECT_EQ(::inet_pton(AF_INET6, text, &address.sin6_addr), 1) << text;
        return kind_of_address(reinterpret_cast<const sockaddr&>(address));
    };
    for (const char* text : {"169.254.0.0", "169.254.169.254", "169.254.255.255"}) {
        EXPECT_EQ(kind_of_ipv4(text), AddressKind::link_local) << text;
        EXPECT_EQ(kind_of_address(std::string_view(text)), AddressKind::link_local) << text;
    }
    for (const char* text : {"169.253.255.255", "169.255.0.0", "10.0.0.1", "192.168.1.1", "8.8.8.8"}) {
        EXPECT_EQ(kind_of_ipv4(text), AddressKind::ordinary) << text;
    }
    for (const char* text : {"127.0.0.1", "127.255.255.255", "0.0.0.0"}) {
        EXPECT_EQ(kind_of_ipv4(text), AddressKind::loopback) << text;
    }
    for (const char* text : {"fe80::1", "febf::1", "::ffff:169.254.169.254", "fd00:ec2::254"}) {
        EXPECT_EQ(kind_of_ipv6(text), AddressKind::link_local) << text;
        EXPECT_EQ(kind_of_address(std::string_view(text)), AddressKind::link_local) << text;
    }
    for (const char* text : {"::1", "::", "::ffff:127.0.0.1"}) {
        EXPECT_EQ(kind_of_ipv6(text), AddressKind::loopback) << text;
    }
    for (const char* text : {"fec0::1", "2001:db8::1", "fd00:ec2::255", "::ffff:10.0.0.1"}) {
        EXPECT_EQ(kind_of_ipv6(text), AddressKind::ordinary) << text;
    }
    EXPECT_EQ(kind_of_address(std::string_view("fe80::1%eth0")), AddressKind::link_local);
    EXPECT_EQ(kind_of_address(std::string_view("example.org")), AddressKind::ordinary);
}

TEST(RedirectRule, OnlyLoopbackMayRedirectToLoopback) {
    EXPECT_TRUE(may_redirect(AddressKind::ordinary, AddressKind::ordinary));
    EXPECT_TRUE(may_redirect(AddressKind::loopback, AddressKind::loopback));
    EXPECT_FALSE(may_redirect(AddressKind::ordinary, AddressKind::loopback));
    EXPECT_FALSE(may_redirect(AddressKind::ordinary, AddressKind::link_local));
    EXPECT_FALSE(may_redirect(AddressKind::loopback, AddressKind::link_local));
    EXPECT_FALSE(may_redirect(AddressKind::link_local, AddressKind::link_local));
}

}  // namespace
}  // namespace larder::cache
