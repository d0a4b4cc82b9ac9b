#include "cache/remote/google_token.h"

#include <boost/json.hpp>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/environment.h"
#include "base/file.h"
#include "base/server/percent_encoding.h"
#include "cache/remote/credential_endpoint.h"
#include "cache/remote/google_assertion.h"

namespace larder::cache {
namespace {

namespace json = boost::json;

constexpr std::int64_t kTokenSecond_ns = 1'000'000'000;
constexpr std::string_view kReadScope = "https://www.googleapis.com/auth/devstorage.read_only";
constexpr std::string_view kJwtGrant = "urn:ietf:params:oauth:grant-type:jwt-bearer";
constexpr std::size_t kTokenBytesMax = 16 << 10;

json::value parse_answer(const HttpResponse& answer) {
    boost::system::error_code failure;
    json::value value = json::parse(answer.body, failure);
    return failure ? json::value() : value;
}

// Quotes only the name of the error, which OAuth defines: the rest of an answer may repeat what was sent.
std::string explain_refusal(const HttpResponse& answer) {
    std::string text = "HTTP " + std::to_string(answer.status);
    const json::value value = parse_answer(answer);
    const json::object* object = value.if_object();
    const json::value* error = object == nullptr ? nullptr : object->if_contains("error");
    if (error == nullptr || !error->is_string()) return text;
    const std::string name(error->get_string());
    const auto of_name = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
    if (name.size() > 64 || !std::ranges::all_of(name, of_name)) return text;
    text += ", " + name;
    if (name == "invalid_grant") text += ": check this machine's clock, and that the account still has this key";
    return text;
}

Result<GoogleToken::Fetched> parse_token(const HttpResponse& answer, const std::string& source_name) {
    if (answer.status != 200) return fail(ErrorCode::unavailable, source_name + ": " + explain_refusal(answer));
    const json::value value = parse_answer(answer);
    const json::object* object = value.if_object();
    const json::value* token = object == nullptr ? nullptr : object->if_contains("access_token");
    const json::value* expires = object == nullptr ? nullptr : object->if_contains("expires_in");
    boost::system::error_code not_a_number;
    const auto expires_s = expires == nullptr ? 0 : expires->to_number<std::int64_t>(not_a_number);
    if (token == nullptr || !token->is_string() || not_a_number || expires_s <= 0) {
        return fail(ErrorCode::protocol, source_name + " gave no token with the time in which it expires");
    }
    std::string text(token->get_string());
    const auto printable = [](char c) { return c > ' ' && c < '\x7f'; };
    if (text.empty() || text.size() > kTokenBytesMax || !std::ranges::all_of(text, printable)) {
        return fail(ErrorCode::protocol, source_name + " gave a token that no header can hold");
    }
    constexpr std::int64_t kMost_s = std::int64_t{10} * 365 * 86400;
    return GoogleToken::Fetched{.value = std::move(text),
                                .expires_unix_ns = unix_time_ns() + std::min(expires_s, kMost_s) * kTokenSecond_ns};
}

Result<GoogleToken::Fetched> fetch_for_account(const std::string& path) {
    const auto text = read_file(path);
    if (!text) return std::unexpected(text.error());
    const auto account = parse_service_account(*text, path);
    if (!account) return std::unexpected(account.error());
    const auto assertion = make_google_assertion(*account, kReadScope, unix_time_ns() / kTokenSecond_ns);
    if (!assertion) return std::unexpected(assertion.error().within(path));
    CredentialEndpoint server("the token server", account->token_uri, true);
    const auto answer = server.ask("POST", server.target(), {{"Content-Type", "application/x-www-form-urlencoded"}},
                                   "grant_type=" + percent_encode(kJwtGrant) + "&assertion=" + *assertion);
    return answer ? parse_token(*answer, server.name()) : std::unexpected(answer.error());
}

Result<GoogleToken::Fetched> fetch_of_machine() {
    std::string host = environment("GCE_METADATA_HOST");
    if (host.empty()) host = "169.254.169.254";
    CredentialEndpoint service("the machine's metadata service", "http://" + host);
    const auto answer = service.ask("GET", "/computeMetadata/v1/instance/service-accounts/default/token",
                                    {{"Metadata-Flavor", "Google"}});
    return answer ? parse_token(*answer, service.name()) : std::unexpected(answer.error());
}

std::string gcloud_file(const std::string& name) {
    std::string directory = environment("CLOUDSDK_CONFIG");
    const std::string home = environment("HOME");
    if (directory.empty() && !home.empty()) directory = home + "/.config/gcloud";
    return directory.empty() ? "" : directory + "/" + name + ".json";
}

Result<std::shared_ptr<const GoogleToken>> start_renewing(const GoogleToken::Fetch& fetch) {
    auto fetched = fetch();
    if (!fetched) return std::unexpected(fetched.error());
    return std::make_shared<GoogleToken>("the token for gs://", fetch, std::move(*fetched));
}

}  // namespace

Result<std::shared_ptr<const GoogleToken>> find_google_token(const RemoteOptions& options) {
    std::string path = environment("GOOGLE_APPLICATION_CREDENTIALS");
    if (!options.profile.empty()) {
        if (options.profile.find('/') != std::string::npos) {
            return fail(ErrorCode::invalid_argument,
                        "the profile \"" + options.profile + "\" is not the name of a file in gcloud's directory");
        }
        path = gcloud_file(options.profile);
    } else if (path.empty()) {
        std::error_code ignored;
        path = gcloud_file("application_default_credentials");
        if (!std::filesystem::exists(path, ignored)) path.clear();
    }
    if (!path.empty()) {
        auto token = start_renewing([path] { return fetch_for_account(path); });
        return token ? token : std::unexpected(token.error().within("Google credentials"));
    }
    std::string machine = "NO_GCE_CHECK is true";
    if (environment("NO_GCE_CHECK") != "true") {
        auto token = start_renewing(fetch_of_machine);
        if (token) return token;
        machine = token.error().message;
    }
    return fail(ErrorCode::permission_denied,
                "Google credentials: none in the daemon's environment (GOOGLE_APPLICATION_CREDENTIALS), in "
                "~/.config/gcloud/application_default_credentials.json, or from the machine (" +
                    machine + "); a public bucket needs --unsigned");
}

}  // namespace larder::cache
