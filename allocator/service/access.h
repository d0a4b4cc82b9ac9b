#pragma once

// Authorizes requests to the API. Over a Unix socket, the user at the other end has a role: root and the allocator's
// user are operators, the config names the roles of others. Over TCP everything but /healthz and the page's files needs
// a bearer token or a client certificate, each of which has a role, unless anyone may read. Browsers send a certificate
// for any page that tells them to, so it counts only for pages of this server. One table, in access.cc, says which role
// may use which route; routes not in the table need the operator role. A request that is refused here has not been read
// beyond its header. One thread at a time.
//
// The token file has one token a line, "ROLE NAME TOKEN"; # begins a comment. Nobody but its owner and group may read
// it. Tokens are kept as SHA-256 digests and compared in constant time.
//
// NAME is for people and the log, except for the role "node": a node reports under this name only. The line of a node
// that lends its cache goes on with the endpoint where its peers reach it, and its peer group if that is not "default":
// "node NAME TOKEN ENDPOINT GROUP". So no node can send others to a host of its choice.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/server/http_message.h"
#include "base/server/token_digest.h"

namespace larder::allocator {

// A viewer looks, a job also registers jobs, a submitter also submits jobs that are run, a node reports, an agent of a
// cluster manager submits and carries out all jobs, an operator may do everything.
enum class Role : std::uint8_t { viewer = 1, job = 2, node = 4, operator_ = 8, submitter = 16, agent = 32 };

std::string_view name(Role role);
std::optional<Role> parse_role(std::string_view text);

// A set of roles, as bits.
using Roles = std::uint8_t;

struct AccessRule {
    std::string_view method;
    std::string_view path;  // "/v1/jobs/{name}"
    Roles roles = 0;
    bool anyone = false;    // without a token too
    bool own_node = false;  // a node: only if {name} is its own
    bool changes = false;   // of a GET: it changes something, as all other methods do
};
std::span<const AccessRule> access_rules();

inline constexpr const char* kDefaultPeerGroup = "default";

// The rights of a token or a certificate.
struct Grant {
    Role role = Role::viewer;
    HttpRequest::NodeBinding node{.peer_endpoint = {}, .peer_group = kDefaultPeerGroup};  // for the role node
};

struct Token {
    Grant grant;
    std::string name;
    TokenDigest digest{};
};

// Errors name the file and the line, and never a token.
Result<std::vector<Token>> read_tokens(const std::string& file);
Result<std::vector<Token>> parse_tokens(std::string_view text, std::string_view source);

// The roles of clients on the Unix socket. Root and the allocator's user are operators in any case.
struct LocalRoles {
    std::map<std::uint32_t, Role> by_uid;
    Role others = Role::submitter;
};

// Returns the name of a client on the Unix socket: "local user 1000".
std::string local_user_name(std::uint32_t uid);

class Access {
public:
    // `certificates`: grants by the common name of a client certificate, which is also the name of a node.
    // `anyone_reads`: who has neither token nor certificate is a viewer, if the request's host is an IP address,
    // localhost, this machine's name or a name in the server's certificate.
    // `more`: rules for routes that are not in access_rules().
    Access(std::vector<Token> tokens, std::map<std::string, Grant> certificates, std::vector<AccessRule> more = {},
           LocalRoles local = {}, bool anyone_reads = false)
        : tokens_(std::move(tokens)),
          certificates_(std::move(certificates)),
          more_(std::move(more)),
          local_(std::move(local)),
          anyone_reads_(anyone_reads) {}

    // Returns the refusal, 401 or 403, or else records in `request` who sent it. For HttpServerOptions::admit.
    std::optional<HttpResponse> admit(HttpRequest& request) const;

private:
    struct Holder {
        Grant grant;
        std::string name;
    };
    // Returns who sent a request over TCP.
    std::optional<Holder> holder_of(const HttpRequest& request) const;
    Holder local_user(const PeerCredentials& peer) const;
    // `name` is set to the {name} of the request's path.
    const AccessRule* rule_of(const HttpRequest& request, std::string& name) const;

    std::vector<Token> tokens_;
    std::map<std::string, Grant> certificates_;
    std::vector<AccessRule> more_;
    LocalRoles local_;
    bool anyone_reads_;
};

}  // namespace larder::allocator
