// Access rules: every route with and without a token, and the contents of a token file.

#include "allocator/service/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "allocator/service/allocator_api.h"
#include "tests/support/temp_directory.h"

namespace larder::allocator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

constexpr std::string_view kTokens =
    "# role name token\n"
    "viewer eye      viewer-token-0123456789\n"
    "job vision\t job-token-0123456789\r\n"
    "submitter ci submitter-token-0123456789\n"
    "\n"
    "node node-1 node-token-0123456789 http://10.0.0.1:7474 rack # the first\n"
    "operator alice operator-token-0123456789\n";

Access access() {
    auto tokens = parse_tokens(kTokens, "tokens");
    EXPECT_TRUE(tokens) << tokens.error().message;
    return Access(tokens.value_or(std::vector<Token>()), {{"node-7", Grant{.role = Role::node}}});
}

std::string message_of(const Result<std::vector<Token>>& tokens) {
    EXPECT_FALSE(tokens);
    return tokens ? "" : tokens.error().message;
}

std::vector<std::string> segments(std::string_view path) {
    std::vector<std::string> all;
    while (path.size() > 1) {  // "/" has no segment
        path.remove_prefix(1);
        all.emplace_back(path.substr(0, path.find('/')));
        path.remove_prefix(all.back().size());
        if (all.back() == "{name}") all.back() = "some";
    }
    return all;
}

HttpRequest over_tcp(std::string_view method, std::string_view path, const std::string& token) {
    return {.method = std::string(method), .path = segments(path), .peer_address = "10.0.0.7", .bearer_token = token};
}

TEST(Access, OnlyHealthAndPageAreAnsweredWithoutToken) {
    const Access access = larder::allocator::access();
    for (const AccessRule& rule : access_rules()) {
        for (const char* token : {"", "wrong-token-0123456789", "operator-token-012345678", "alice"}) {
            HttpRequest request = over_tcp(rule.method, rule.path, token);
            const auto refusal = access.admit(request);
            EXPECT_EQ(request.authenticated_as, "");
            ASSERT_EQ(refusal.has_value(), !rule.anyone) << rule.method << " " << rule.path;
            if (!refusal) continue;
            EXPECT_EQ(refusal->status, 401u);
            EXPECT_THAT(refusal->headers, Contains(Pair("WWW-Authenticate", StartsWith("Bearer realm="))));
        }
    }
    HttpRequest elsewhere = over_tcp("GET", "/v1/nowhere", "");
    EXPECT_EQ(access.admit(elsewhere)->status, 401u) << "an unknown path needs a token too";
}

TEST(Access, AnyoneReadsWhereConfigAllows) {
    const Access open({}, {}, {}, {}, true);
    const auto is_admitted = [&](const char* method, const char* path, const char* host) {
        HttpRequest request = over_tcp(method, path, "");
        request.host = host;
        const bool admitted = !open.admit(request);
        if (admitted) {
            EXPECT_EQ(request.role, "viewer");
            EXPECT_FALSE(request.is_operator);
        }
        return admitted;
    };
    EXPECT_TRUE(is_admitted("GET", "/v1/jobs", "10.0.0.1:7600"));
    EXPECT_TRUE(is_admitted("GET", "/v1/jobs", "localhost"));
    EXPECT_FALSE(is_admitted("GET", "/v1/jobs", "larder.example.com")) << "a name of somebody else's";
    EXPECT_FALSE(is_admitted("PUT", "/v1/remote", "10.0.0.1:7600"));
    HttpRequest wrong = over_tcp("GET", "/v1/jobs", "wrong-token-0123456789");
    wrong.host = "localhost";
    EXPECT_EQ(open.admit(wrong)->status, 401u);
}

TEST(Access, AnyoneIsToldHowToAsk) {
    const Access open({}, {}, {}, {}, true);
    HttpRequest request = over_tcp("GET", "/v1/jobs", "");
    request.host = "larder.example.com";
    const auto refusal = open.admit(request);
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->status, 401u);
    EXPECT_THAT(refusal->body,
                HasSubstr("without a token, ask by an IP address, as localhost or by this machine's name"));
    request.host_is_certified = true;
    EXPECT_FALSE(open.admit(request)) << "a browser has checked the name";
}

TEST(Access, ForeignPageChangesNothingWithClientCertificateOrAsAnyone) {
    const Access access({}, {{"alice", Grant{.role = Role::operator_}}}, {}, {}, true);
    const auto refusal = [&](HttpRequest request, const char* certificate) {
        request.certificate_name = certificate;
        if (request.host.empty()) request.host = "10.0.0.1:7600";
        const auto refused = access.admit(request);
        return refused ? refused->status : 0;
    };
    for (const char* certificate : {"alice", ""}) {
        HttpRequest request = over_tcp("POST", "/v1/whatif", "");
        EXPECT_EQ(refusal(request, certificate), 0u) << "no browser";
        request.is_from_browser = true;
        request.origin = "https://10.0.0.1:7600";
        EXPECT_EQ(refusal(request, certificate), 0u) << "the server's own page";
        request.fetch_site = "same-origin";
        EXPECT_EQ(refusal(request, certificate), 0u);
        for (const char* site : {"cross-site", "same-site", "other"}) {
            request.fetch_site = site;
            EXPECT_EQ(refusal(request, certificate), 403u) << site;
        }
        for (const char* site : {"", "none", "same-origin"}) {
            request.fetch_site = site;
            for (const char* origin : {"https://evil.example", "https://10.0.0.1", "https://10.0.0.1:7601", "null"}) {
                request.origin = origin;
                EXPECT_EQ(refusal(request, certificate), 403u) << origin;
            }
        }
        request.method = "GET";
        request.path = segments("/v1/jobs");
        EXPECT_EQ(refusal(request, certificate), 0u) << "a foreign page cannot read the answer";
    }
    HttpRequest by_token = over_tcp("POST", "/v1/whatif", "unknown-token-0123456789");
    by_token.origin = "https://evil.example";
    EXPECT_EQ(refusal(by_token, "alice"), 401u) << "a token is judged as such";
}

TEST(Access, ForeignPageTakesNoLeaseWithClientCertificate) {
    const Access access({}, {{"alice", Grant{.role = Role::operator_}}});
    HttpRequest request = over_tcp("GET", "/v1/nodes/n1/plan", "");
    request.certificate_name = "alice";
    request.host = "10.0.0.1:7600";
    EXPECT_FALSE(access.admit(request)) << "no browser";
    request.is_from_browser = true;
    EXPECT_EQ(access.admit(request)->status, 403u) << "an old browser, which does not say of which page the request is";
    for (const char* site : {"cross-site", "same-site", "other"}) {
        request.fetch_site = site;
        ASSERT_TRUE(access.admit(request)) << site;
        EXPECT_EQ(access.admit(request)->status, 403u) << site;
    }
    for (const char* site : {"none", "same-origin"}) {
        request.fetch_site = site;
        EXPECT_FALSE(access.admit(request)) << site;
    }
    request.origin = "https://evil.example";
    EXPECT_EQ(access.admit(request)->status, 403u);
}

TEST(Access, BrowserWithCertificateNamesThisMachine) {
    const Access access({}, {{"alice", Grant{.role = Role::operator_}}});
    HttpRequest request = over_tcp("GET", "/v1/jobs", "");
    request.certificate_name = "alice";
    request.host = "evil.example";
    EXPECT_FALSE(access.admit(request)) << "no browser";
    request.is_from_browser = true;
    EXPECT_EQ(access.admit(request)->status, 403u);
    request.host_is_certified = true;
    EXPECT_FALSE(access.admit(request));
}

TEST(Access, RoleMayDoWhatTheTableAllows) {
    const Access access = larder::allocator::access();
    // A node may use its own {name} only.
    const std::vector<std::pair<Role, std::string>> holders{{Role::viewer, "viewer-token-0123456789"},
                                                            {Role::job, "job-token-0123456789"},
                                                            {Role::submitter, "submitter-token-0123456789"},
                                                            {Role::node, "node-token-0123456789"},
                                                            {Role::operator_, "operator-token-0123456789"}};
    for (const AccessRule& rule : access_rules()) {
        for (const auto& [role, token] : holders) {
            HttpRequest request = over_tcp(rule.method, rule.path, token);
            const auto refusal = access.admit(request);
            const bool is_foreign = role == Role::node && rule.own_node;
            const bool allowed = rule.anyone || ((rule.roles & static_cast<Roles>(role)) != 0 && !is_foreign);
            ASSERT_EQ(refusal.has_value(), !allowed) << name(role) << " " << rule.method << " " << rule.path;
            if (refusal) {
                EXPECT_EQ(refusal->status, 403u);
            }
        }
    }
    const auto is_allowed = [&](const char* token, const char* method, const char* path) {
        HttpRequest request = over_tcp(method, path, token);
        return !access.admit(request);
    };
    // Rules that must never change.
    EXPECT_FALSE(is_allowed("viewer-token-0123456789", "POST", "/v1/reports"));
    EXPECT_FALSE(is_allowed("viewer-token-0123456789", "POST", "/v1/jobs"));
    EXPECT_FALSE(is_allowed("node-token-0123456789", "PUT", "/v1/remote"));
    EXPECT_FALSE(is_allowed("job-token-0123456789", "PUT", "/v1/datasets/some/pin"));
    EXPECT_FALSE(is_allowed("job-token-0123456789", "POST", "/v1/reports"));
    EXPECT_FALSE(is_allowed("submitter-token-0123456789", "POST", "/v1/reports"));
    EXPECT_FALSE(is_allowed("submitter-token-0123456789", "PUT", "/v1/remote"));
    EXPECT_TRUE(is_allowed("operator-token-0123456789", "PUT", "/v1/remote"));
    HttpRequest refused = over_tcp("POST", "/v1/jobs", "viewer-token-0123456789");
    EXPECT_THAT(access.admit(refused)->body,
                testing::HasSubstr("this request needs the role job or submitter or operator"));
}

TEST(Access, TableCoversEveryRouteOfTheApi) {
    std::vector<std::string> named;
    std::vector<std::string> served;
    for (const AccessRule& rule : access_rules())
        named.push_back(std::string(rule.method) + " " + std::string(rule.path));
    for (const AllocatorApi::Route& route : AllocatorApi::routes()) {
        served.push_back(std::string(route.method) + " " + std::string(route.path));
    }
    EXPECT_THAT(named, ::testing::UnorderedElementsAreArray(served));
}

TEST(Access, RouteMissingFromTableIsForOperatorsOnly) {
    const Access access = larder::allocator::access();
    HttpRequest by_node = over_tcp("POST", "/v1/plan", "node-token-0123456789");
    EXPECT_EQ(access.admit(by_node)->status, 403u);
    HttpRequest by_operator = over_tcp("POST", "/v1/plan", "operator-token-0123456789");
    EXPECT_FALSE(access.admit(by_operator));
    EXPECT_EQ(by_operator.authenticated_as, "alice");
}

// Returns true if the user may make the request on the Unix socket.
bool local_user_may(const Access& access, std::uint32_t uid, std::string_view method, std::string_view path) {
    HttpRequest request = over_tcp(method, path, "");
    request.peer = PeerCredentials{.uid = uid, .gid = 1, .pid = 1};
    const auto refusal = access.admit(request);
    if (refusal) {
        EXPECT_EQ(refusal->status, 403u);
    } else {
        EXPECT_EQ(request.authenticated_as, "local user " + std::to_string(uid));
    }
    return !refusal;
}

TEST(Access, UserOfTheUnixSocketHasARole) {
    const Access access({}, {}, {}, {.by_uid = {{17, Role::node}, {18, Role::operator_}}, .others = Role::viewer});
    EXPECT_TRUE(local_user_may(access, 17, "POST", "/v1/reports"));
    EXPECT_FALSE(local_user_may(access, 17, "PUT", "/v1/remote"));
    EXPECT_TRUE(local_user_may(access, 18, "PUT", "/v1/remote"));
    EXPECT_TRUE(local_user_may(access, 19, "GET", "/v1/plan"));
    EXPECT_FALSE(local_user_may(access, 19, "POST", "/v1/jobs"));
    for (const std::uint32_t own : {0u, static_cast<std::uint32_t>(::geteuid())}) {
        EXPECT_TRUE(local_user_may(access, own, "PUT", "/v1/remote")) << "root and the allocator's user are operators";
    }
    HttpRequest by_operator = over_tcp("GET", "/v1/plan", "");
    by_operator.peer = PeerCredentials{.uid = 18, .gid = 1, .pid = 1};
    EXPECT_FALSE(access.admit(by_operator));
    EXPECT_TRUE(by_operator.is_operator);
}

TEST(Access, NodeIsBoundToItsNameEndpointAndGroup) {
    const Access access = larder::allocator::access();
    HttpRequest report = over_tcp("POST", "/v1/reports", "node-token-0123456789");
    EXPECT_FALSE(access.admit(report));
    EXPECT_EQ(report.authenticated_as, "node-1");
    ASSERT_TRUE(report.node);
    EXPECT_EQ(report.node->peer_endpoint, "http://10.0.0.1:7474");
    EXPECT_EQ(report.node->peer_group, "rack");
    HttpRequest own = over_tcp("GET", "/v1/nodes/node-1/plan", "node-token-0123456789");
    EXPECT_FALSE(access.admit(own));
    HttpRequest other = over_tcp("GET", "/v1/nodes/node-2/plan", "node-token-0123456789");
    const auto refusal = access.admit(other);
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->status, 403u);
    EXPECT_THAT(refusal->body, HasSubstr("node-1"));
    HttpRequest by_operator = over_tcp("POST", "/v1/reports", "operator-token-0123456789");
    EXPECT_FALSE(access.admit(by_operator));
    EXPECT_FALSE(by_operator.node) << "an operator may report for any node";
}

TEST(Access, OtherUsersOfTheUnixSocketOnlySubmitAndRegisterUnlessTheConfigSaysMore) {
    const Access access = larder::allocator::access();
    EXPECT_TRUE(local_user_may(access, 17, "GET", "/v1/plan"));
    EXPECT_TRUE(local_user_may(access, 17, "POST", "/v1/jobs"));
    for (const AccessRule& rule : access_rules()) {
        if (rule.anyone || (rule.roles & static_cast<Roles>(Role::submitter)) != 0) continue;
        EXPECT_FALSE(local_user_may(access, 17, rule.method, rule.path)) << rule.method << " " << rule.path;
    }
}

TEST(Access, MappedCertificateGrantsItsRole) {
    const Access access = larder::allocator::access();
    HttpRequest mapped = over_tcp("POST", "/v1/reports", "");
    mapped.certificate_name = "node-7";
    EXPECT_FALSE(access.admit(mapped));
    EXPECT_EQ(mapped.authenticated_as, "node-7");
    HttpRequest other = over_tcp("POST", "/v1/reports", "");
    other.certificate_name = "node-8";
    EXPECT_EQ(access.admit(other)->status, 401u);
    HttpRequest wrong = over_tcp("POST", "/v1/reports", "wrong-token-0123456789");
    wrong.certificate_name = "node-7";
    EXPECT_EQ(access.admit(wrong)->status, 401u) << "a wrong token is wrong whoever shows it";
}

TEST(Tokens, InvalidLinesAreNamed) {
    EXPECT_EQ(parse_tokens("", "t")->size(), 0u);
    EXPECT_EQ(message_of(parse_tokens("\nviewer eye", "t")), "t:2: expected ROLE NAME TOKEN");
    EXPECT_EQ(message_of(parse_tokens("viewer eye a-token-0123456789 more", "t")), "t:1: expected ROLE NAME TOKEN");
    EXPECT_EQ(message_of(parse_tokens("node a a-token-0123456789 http://a:1 rack more", "t")),
              "t:1: expected node NAME TOKEN [ENDPOINT [GROUP]]");
    for (const char* endpoint :
         {"a:1", "http://a", "http://a:1/", "http://a:1/x", "unix:/a", "ftp://a:1", "http://x@a:1"}) {
        EXPECT_THAT(message_of(parse_tokens(std::string("node a a-token-0123456789 ") + endpoint, "t")),
                    HasSubstr("is not an endpoint"))
            << endpoint;
    }
    EXPECT_THAT(message_of(parse_tokens("node a token-0123456789 http://a:1\nnode b token-abcdefghij http://a:1", "t")),
                HasSubstr("t:2: the endpoint http://a:1 is already that of \"a\""));
    EXPECT_EQ(message_of(parse_tokens("admin eye a-token-0123456789", "t")),
              "t:1: \"admin\" is not a role: expected viewer, job, submitter, node, agent or operator");
    const std::string shorter = message_of(parse_tokens("viewer eye short", "t"));
    EXPECT_THAT(shorter, HasSubstr("16 to 512"));
    EXPECT_THAT(shorter, ::testing::Not(HasSubstr("short")));
    EXPECT_THAT(message_of(parse_tokens("viewer eye token-with-\"quotes\"-in-it", "t")), HasSubstr("letters, digits"));
    EXPECT_THAT(message_of(parse_tokens("viewer a token-0123456789\nnode a token-abcdefghij", "t")),
                HasSubstr("t:2: the name \"a\" is already used"));
    EXPECT_THAT(message_of(parse_tokens("viewer a token-0123456789\nnode b token-0123456789", "t")),
                HasSubstr("t:2: the token of \"b\" is already used by \"a\""));
}

TEST(Tokens, FileOthersCanAccessIsRefused) {
    const test::TempDirectory directory;
    const std::string file = directory / "tokens";
    std::ofstream(file) << kTokens;
    for (const unsigned mode : {0644u, 0604u, 0620u, 0602u}) {
        ASSERT_EQ(::chmod(file.c_str(), mode), 0);
        const auto refused = read_tokens(file);
        ASSERT_FALSE(refused) << mode;
        EXPECT_EQ(refused.error().code, ErrorCode::permission_denied);
        EXPECT_THAT(refused.error().message, HasSubstr("chmod 0600 " + file));
    }
    for (const unsigned mode : {0600u, 0640u, 0400u}) {
        ASSERT_EQ(::chmod(file.c_str(), mode), 0);
        EXPECT_EQ(read_tokens(file)->size(), 5u);
    }
    EXPECT_THAT(message_of(read_tokens(directory / "lost")), HasSubstr("lost"));
}

}  // namespace
}  // namespace larder::allocator
