#include "cache/remote/s3_role.h"

#include <boost/json.hpp>

#include <algorithm>
#include <ctime>
#include <string>
#include <utility>

#include "base/environment.h"
#include "base/file.h"
#include "cache/remote/credential_endpoint.h"
#include "cache/remote/renewed_value.h"

namespace larder::cache {
namespace {

namespace json = boost::json;

constexpr std::int64_t kSecond_ns = 1'000'000'000;

using Headers = CredentialEndpoint::Headers;
using RenewedKeys = RenewedValue<S3Keys>;
using Fetched = RenewedKeys::Fetched;

Result<Fetched> parse(const std::string& text, const std::string& source_name) {
    boost::system::error_code failure;
    const json::value value = json::parse(text, failure);
    const json::object* object = failure ? nullptr : value.if_object();
    const auto field = [&](const char* name) -> std::string {
        const json::value* found = object == nullptr ? nullptr : object->if_contains(name);
        const json::string* as_text = found == nullptr ? nullptr : found->if_string();
        return as_text == nullptr ? "" : std::string(*as_text);
    };
    Fetched fetched{.value = {.access_key_id = field("AccessKeyId"),
                              .secret_access_key = field("SecretAccessKey"),
                              .session_token = field("Token")}};
    if (fetched.value.access_key_id.empty() || fetched.value.secret_access_key.empty()) {
        return fail(ErrorCode::protocol, source_name + " gave no credentials");
    }
    const std::string expires = field("Expiration");
    if (!expires.empty()) {
        std::tm parts{};
        if (::strptime(expires.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr) {
            return fail(ErrorCode::protocol, source_name + " gave credentials with an expiry that is not a time");
        }
        fetched.expires_unix_ns = std::int64_t{::timegm(&parts)} * kSecond_ns;
    }
    return fetched;
}

// Returns the token for the container's endpoint. The platform renews a token file, so the file is read each time.
Result<std::string> container_token() {
    const std::string path = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    if (path.empty()) return environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    auto token = read_file(path);
    if (!token) return std::unexpected(token.error().within("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"));
    while (token->ends_with('\n') || token->ends_with('\r')) token->pop_back();
    return token;
}

Result<Fetched> fetch_from_container(const std::string& url) {
    CredentialEndpoint source("the container's endpoint", url);
    const auto token = container_token();
    if (!token) return std::unexpected(token.error());
    if (token->find_first_of("\r\n") != std::string::npos) {
        return fail(ErrorCode::invalid_argument, "the token for " + source.name() + " has more than one line");
    }
    const auto body =
        source.request("GET", source.target(), token->empty() ? Headers{} : Headers{{"Authorization", *token}});
    return body ? parse(*body, source.name()) : Result<Fetched>(std::unexpected(body.error()));
}

Result<Fetched> fetch_from_machine() {
    std::string base = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    if (base.empty()) base = "http://169.254.169.254";
    CredentialEndpoint source("the machine's metadata service", base);
    std::string path = source.target();
    while (path.ends_with('/')) path.pop_back();
    const auto token =
        source.request("PUT", path + "/latest/api/token", {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}});
    if (!token) return std::unexpected(token.error());
    const Headers token_header{{"X-aws-ec2-metadata-token", *token}};
    const std::string roles = path + "/latest/meta-data/iam/security-credentials/";
    auto role = source.request("GET", roles, token_header);
    if (!role) return std::unexpected(role.error());
    role->erase(std::min(role->size(), role->find_first_of("\r\n")));
    const auto body = source.request("GET", roles + *role, token_header);
    return body ? parse(*body, source.name()) : Result<Fetched>(std::unexpected(body.error()));
}

Result<Fetched> fetch() {
    const std::string full_uri = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (!full_uri.empty()) return fetch_from_container(full_uri);
    const std::string relative_uri = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    if (!relative_uri.empty()) return fetch_from_container("http://169.254.170.2" + relative_uri);
    if (environment("AWS_EC2_METADATA_DISABLED") == "true") {
        return fail(ErrorCode::unavailable, "AWS_EC2_METADATA_DISABLED is true");
    }
    return fetch_from_machine();
}

class Role final : public S3Credentials {
public:
    explicit Role(Fetched fetched) : keys_("the role's credentials", fetch, std::move(fetched)) {}
    S3Keys keys() const override { return keys_.value(); }
    bool renews_itself() const override { return true; }

private:
    RenewedKeys keys_;
};

}  // namespace

Result<std::shared_ptr<const S3Credentials>> make_s3_role() {
    auto fetched = fetch();
    if (!fetched) return std::unexpected(fetched.error());
    return std::make_shared<Role>(std::move(*fetched));
}

}  // namespace larder::cache
