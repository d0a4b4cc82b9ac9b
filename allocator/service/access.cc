#include "allocator/service/access.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/server/http_route.h"
#include "base/server/http_target.h"
#include "base/server/private_file.h"

namespace larder::allocator {
namespace {

constexpr Roles kViewer = static_cast<Roles>(Role::viewer);
constexpr Roles kJob = static_cast<Roles>(Role::job);
constexpr Roles kNode = static_cast<Roles>(Role::node);
constexpr Roles kOperator = static_cast<Roles>(Role::operator_);
constexpr Roles kSubmitter = static_cast<Roles>(Role::submitter);
constexpr Roles kRegistrars = kJob | kSubmitter | kOperator;
constexpr Roles kReaders = kViewer | kNode | static_cast<Roles>(Role::agent) | kRegistrars;

constexpr std::array kRules{
    AccessRule{.method = "GET", .path = "/healthz", .anyone = true},
    AccessRule{.method = "GET", .path = "/", .anyone = true},
    AccessRule{.method = "GET", .path = "/page.js", .anyone = true},
    AccessRule{.method = "GET", .path = "/page.css", .anyone = true},
    AccessRule{.method = "GET", .path = "/v1/access", .roles = kReaders},
    AccessRule{.method = "GET", .path = "/metrics", .roles = kViewer | kOperator},
    AccessRule{.method = "GET", .path = "/v1", .roles = kReaders},
    AccessRule{.method = "GET", .path = "/v1/status", .roles = kReaders},
    AccessRule{.method = "POST", .path = "/v1/reports", .roles = kNode | kOperator},
    AccessRule{.method = "GET", .path = "/v1/plan", .roles = kReaders},
    AccessRule{.method = "GET", .path = "/v1/nodes", .roles = kReaders},
    AccessRule{.method = "DELETE", .path = "/v1/nodes/{name}", .roles = kOperator},
    AccessRule{.method = "GET",
               .path = "/v1/nodes/{name}/plan",
               .roles = kNode | kOperator,
               .own_node = true,
               .changes = true},  // it grants a lease
    AccessRule{.method = "GET", .path = "/v1/datasets", .roles = kReaders},
    AccessRule{.method = "PUT", .path = "/v1/datasets/{name}/pin", .roles = kOperator},
    AccessRule{.method = "DELETE", .path = "/v1/datasets/{name}/pin", .roles = kOperator},
    AccessRule{.method = "GET", .path = "/v1/jobs", .roles = kReaders},
    AccessRule{.method = "GET", .path = "/v1/jobs/{name}/rates", .roles = kReaders},
    AccessRule{.method = "POST", .path = "/v1/jobs", .roles = kRegistrars},
    AccessRule{.method = "DELETE", .path = "/v1/jobs/{name}", .roles = kRegistrars},
    AccessRule{.method = "PUT", .path = "/v1/jobs/{name}/reservation", .roles = kOperator},
    AccessRule{.method = "POST", .path = "/v1/jobs/{name}/placement", .roles = kNode | kOperator},
    AccessRule{.method = "PUT", .path = "/v1/remote", .roles = kOperator},
    AccessRule{.method = "DELETE", .path = "/v1/remote", .roles = kOperator},
    AccessRule{.method = "POST", .path = "/v1/whatif", .roles = kViewer | kRegistrars},
    AccessRule{.method = "GET", .path = "/v1/events", .roles = kReaders},
    AccessRule{.method = "GET", .path = "/v1/events/stream", .roles = kReaders},
};

constexpr std::array kRoleNames{std::pair{Role::viewer, std::string_view("viewer")},
                                std::pair{Role::job, std::string_view("job")},
                                std::pair{Role::submitter, std::string_view("submitter")},
                                std::pair{Role::node, std::string_view("node")},
                                std::pair{Role::agent, std::string_view("agent")},
                                std::pair{Role::operator_, std::string_view("operator")}};

// Lists the roles that a rule allows: "job or operator". Every rule allows the operator, so does a missing one.
std::string roles_text(const AccessRule* rule) {
    std::string text;
    for (const auto& [role, name] : kRoleNames) {
        const bool allowed =
            role == Role::operator_ || (rule != nullptr && (rule->roles & static_cast<Roles>(role)) != 0);
        if (allowed) text += (text.empty() ? "" : " or ") + std::string(name);
    }
    return text;
}

HttpResponse unauthenticated(bool had_token, const std::string& why) {
    HttpResponse response = http_error(401, "unauthenticated", why);
    response.headers.emplace_back(
        "WWW-Authenticate", had_token ? "Bearer realm=\"larder\", error=\"invalid_token\"" : "Bearer realm=\"larder\"");
    return response;
}

bool names_this_machine(const HttpRequest& request) {
    return request.host_is_certified || is_own_host(request.host);
}

// A page of a foreign host can make a browser send requests with its user's client certificate, or as anyone. The page
// cannot read the answers, but the changes would be made. A token needs no check, because such a page does not know it.
// Browsers that know no Sec-Fetch-Site say nothing of the page that sends a GET.
std::optional<HttpResponse> refuse_foreign_page(const HttpRequest& request, bool changes) {
    const auto refuse = [](const std::string& why) {
        return http_error(403, larder::name(ErrorCode::permission_denied), why);
    };
    const std::string_view site = request.fetch_site;
    const bool is_foreign = (!request.origin.empty() && !is_origin_of(request.origin, request.host)) ||
                            (!site.empty() && site != "same-origin" && site != "none");
    const bool is_unknown =
        request.is_from_browser && request.method == "GET" && request.origin.empty() && site.empty();
    if ((is_foreign || is_unknown) && changes) {
        return refuse(
            "without a token, a page of another host changes nothing: the request is of the site \"" +
            (is_unknown ? "unknown" : std::string(request.origin.empty() ? request.fetch_site : request.origin)) +
            "\"");
    }
    if (request.is_from_browser && !names_this_machine(request)) {
        return refuse("without a token, ask " + own_host_text() + ", or by a name in the server's certificate");
    }
    return std::nullopt;
}

std::string_view next_word(std::string_view& line) {
    constexpr std::string_view blank = " \t\r";
    line.remove_prefix(std::min(line.find_first_not_of(blank), line.size()));
    const std::string_view word = line.substr(0, line.find_first_of(blank));
    line.remove_prefix(word.size());
    return word;
}

Result<Token> parse_token(std::string_view line) {
    const std::string_view role = next_word(line);
    const std::string_view holder = next_word(line);
    const std::string_view token = next_word(line);
    const std::string_view endpoint = next_word(line);
    const std::string_view group = next_word(line);
    const auto refuse = [](std::string message) { return fail(ErrorCode::invalid_argument, std::move(message)); };
    const bool is_node = role == name(Role::node);
    if (token.empty() || !next_word(line).empty() || (!is_node && !endpoint.empty())) {
        return refuse(is_node ? "expected node NAME TOKEN [ENDPOINT [GROUP]]" : "expected ROLE NAME TOKEN");
    }
    const auto parsed = parse_role(role);
    if (!parsed) {
        return refuse("\"" + std::string(role) +
                      "\" is not a role: expected viewer, job, submitter, node, agent or operator");
    }
    if (!is_good_token(token)) {
        return refuse("the token of \"" + std::string(holder) + "\" " + good_token_text());
    }
    if (!endpoint.empty() && !is_tcp_endpoint(endpoint)) {
        return refuse("\"" + std::string(endpoint) +
                      "\" is not an endpoint: expected http://HOST:PORT or https://HOST:PORT");
    }
    Token read{.grant = {.role = *parsed}, .name = std::string(holder), .digest = token_digest(token)};
    read.grant.node.peer_endpoint = endpoint;
    if (!group.empty()) read.grant.node.peer_group = group;
    return read;
}

}  // namespace

std::string_view name(Role role) {
    return std::ranges::find(kRoleNames, role, &std::pair<Role, std::string_view>::first)->second;
}

std::optional<Role> parse_role(std::string_view text) {
    const auto found = std::ranges::find(kRoleNames, text, &std::pair<Role, std::string_view>::second);
    if (found == kRoleNames.end()) return std::nullopt;
    return found->first;
}

std::span<const AccessRule> access_rules() {
    return kRules;
}

Result<std::vector<Token>> parse_tokens(std::string_view text, std::string_view source) {
    std::vector<Token> tokens;
    for (std::size_t number = 1; !text.empty(); ++number) {
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        line = line.substr(0, line.find('#'));
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const std::string where = std::string(source) + ":" + std::to_string(number);
        auto token = parse_token(line);
        if (!token) return std::unexpected(token.error().within(where));
        for (const Token& other : tokens) {
            const std::string& endpoint = token->grant.node.peer_endpoint;
            if (!endpoint.empty() && other.grant.node.peer_endpoint == endpoint) {
                return fail(ErrorCode::invalid_argument,
                            where + ": the endpoint " + endpoint + " is already that of \"" + other.name + "\"");
            }
            if (other.name != token->name && other.digest != token->digest) continue;
            return fail(ErrorCode::invalid_argument,
                        where + (other.name == token->name ? ": the name \"" + token->name + "\" is already used"
                                                           : ": the token of \"" + token->name +
                                                                 "\" is already used by \"" + other.name + "\""));
        }
        tokens.push_back(std::move(*token));
    }
    return tokens;
}

Result<std::vector<Token>> read_tokens(const std::string& file) {
    const auto text = read_private_file(file, "token file");
    if (!text) return std::unexpected(text.error());
    return parse_tokens(*text, file);
}

const AccessRule* Access::rule_of(const HttpRequest& request, std::string& name) const {
    for (const std::span<const AccessRule> rules : {std::span<const AccessRule>(kRules), std::span(more_)}) {
        const auto found = std::ranges::find_if(rules, [&](const AccessRule& rule) {
            return rule.method == request.method && match_route(rule.path, request.path, name);
        });
        if (found != rules.end()) return &*found;
    }
    return nullptr;
}

std::optional<Access::Holder> Access::holder_of(const HttpRequest& request) const {
    if (request.bearer_token.empty()) {
        const auto found = certificates_.find(request.certificate_name);
        if (request.certificate_name.empty() || found == certificates_.end()) return std::nullopt;
        return Holder{found->second, found->first};
    }
    const auto digest = token_digest(request.bearer_token);
    const Token* found = nullptr;
    // Compares all tokens, each in constant time, so that the time taken reveals nothing about them.
    for (const Token& token : tokens_) {
        if (is_same(token.digest, digest)) found = &token;
    }
    if (found == nullptr) return std::nullopt;
    return Holder{found->grant, found->name};
}

std::string local_user_name(std::uint32_t uid) {
    return "local user " + std::to_string(uid);
}

Access::Holder Access::local_user(const PeerCredentials& peer) const {
    Holder holder{{.role = local_.others}, local_user_name(peer.uid)};
    if (const auto given = local_.by_uid.find(peer.uid); given != local_.by_uid.end()) {
        holder.grant.role = given->second;
    }
    if (peer.uid == 0 || peer.uid == ::geteuid()) holder.grant.role = Role::operator_;
    return holder;
}

std::optional<HttpResponse> Access::admit(HttpRequest& request) const {
    std::string named;
    const AccessRule* rule = rule_of(request, named);
    if (rule != nullptr && rule->anyone) return std::nullopt;
    auto holder = request.peer ? local_user(*request.peer) : holder_of(request);
    const bool has_token = !request.bearer_token.empty();
    if (!holder && anyone_reads_ && !has_token) {
        // Pages of a foreign host whose name leads here could read in the browsers of their visitors.
        if (!names_this_machine(request)) return unauthenticated(false, "without a token, ask " + own_host_text());
        holder = Holder{{.role = Role::viewer}, "anyone"};
    }
    if (!holder) {
        return unauthenticated(
            has_token, has_token ? "the token is unknown" : "the request needs a bearer token or a client certificate");
    }
    if (!request.peer && !has_token) {
        const bool changes = request.method != "GET" || (rule != nullptr && rule->changes);
        if (auto refusal = refuse_foreign_page(request, changes)) return refusal;
    }
    const Role role = holder->grant.role;
    const bool allowed = role == Role::operator_ || (rule != nullptr && (rule->roles & static_cast<Roles>(role)) != 0);
    if (!allowed) {
        return http_error(403, larder::name(ErrorCode::permission_denied),
                          "\"" + holder->name + "\" has the role " + std::string(name(role)) +
                              "; this request needs the role " + roles_text(rule) +
                              (request.peer ? " (user.NAME.role in the allocator's config)" : ""));
    }
    if (role == Role::node && !request.peer && rule->own_node && named != holder->name) {
        return http_error(403, larder::name(ErrorCode::permission_denied),
                          "node \"" + holder->name + "\" may not ask for the plan of node \"" + named + "\"");
    }
    request.authenticated_as = holder->name;
    request.role = larder::allocator::name(role);
    request.is_operator = role == Role::operator_;
    request.is_agent = role == Role::agent;
    if (role == Role::node && !request.peer) request.node = holder->grant.node;
    return std::nullopt;
}

}  // namespace larder::allocator
