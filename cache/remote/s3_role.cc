#include "cache/remote/s3_role.h"

#include <boost/json.hpp>
#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/environment.h"
#include "base/file.h"
#include "base/server/http_client.h"
#include "base/server/logging.h"

namespace larder::cache {
namespace {

namespace json = boost::json;

constexpr std::int64_t kTimeout_ms = 2'000;
constexpr std::int64_t kSecond_ns = 1'000'000'000;
constexpr std::int64_t kBeforeExpiry_ns = 300 * kSecond_ns;
constexpr std::int64_t kRetryMost_ns = 60 * kSecond_ns;
constexpr std::int64_t kRenewalDelayMax_ns = std::int64_t{24} * 3600 * kSecond_ns;
constexpr std::size_t kAnswerBytesMax = 64 << 10;

using Headers = std::vector<std::pair<std::string, std::string>>;

// A URL in its parts; all are empty if the text is not a URL.
struct UrlParts {
    std::string host;      // "http://host" or "http://host:port", as it was written
    std::string endpoint;  // "http://host:port"
    std::string target;    // the path and the query
};

UrlParts url_parts(const std::string& url) {
    const std::unique_ptr<CURLU, void (*)(CURLU*)> parts(curl_url(), curl_url_cleanup);
    const auto get = [&](CURLUPart part, unsigned flags) -> std::string {
        char* found = nullptr;
        if (curl_url_get(parts.get(), part, &found, flags) != CURLUE_OK) return "";
        std::string text = found;
        curl_free(found);
        return text;
    };
    if (curl_url_set(parts.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return {};
    UrlParts read{.target = get(CURLUPART_PATH, 0)};
    if (const std::string query = get(CURLUPART_QUERY, 0); !query.empty()) read.target += "?" + query;
    for (const CURLUPart part :
         {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_OPTIONS, CURLUPART_QUERY, CURLUPART_FRAGMENT, CURLUPART_PATH}) {
        curl_url_set(parts.get(), part, nullptr, 0);
    }
    read.host = get(CURLUPART_URL, 0);
    while (read.host.ends_with('/')) read.host.pop_back();
    read.endpoint = get(CURLUPART_URL, CURLU_DEFAULT_PORT);
    return read;
}

// An endpoint that gives credentials.
class Source {
public:
    Source(const std::string& name, const UrlParts& url)
        : name_(url.host.empty() ? name : name + " " + url.host), client_(url.endpoint) {}

    // For messages: without path and query, with which anyone could fetch the credentials.
    const std::string& name() const { return name_; }

    Result<std::string> request(const char* method, const std::string& target, Headers headers) {
        const auto answer = client_.request(
            method, target, {},
            {.timeout_ms = kTimeout_ms, .answer_bytes_max = kAnswerBytesMax, .headers = std::move(headers)});
        if (!answer) return fail(ErrorCode::unavailable, name_ + ": " + answer.error().message);
        if (answer->status == 200) return answer->body;
        return fail(ErrorCode::unavailable, name_ + ": HTTP " + std::to_string(answer->status));
    }

private:
    std::string name_;
    HttpClient client_;
};

struct Fetched {
    S3Keys keys;
    std::int64_t expires_unix_ns = 0;  // 0: never
};

Result<Fetched> parse(const std::string& text, const std::string& source_name) {
    boost::system::error_code failure;
    const json::value value = json::parse(text, failure);
    const json::object* object = failure ? nullptr : value.if_object();
    const auto field = [&](const char* name) -> std::string {
        const json::value* found = object == nullptr ? nullptr : object->if_contains(name);
        const json::string* as_text = found == nullptr ? nullptr : found->if_string();
        return as_text == nullptr ? "" : std::string(*as_text);
    };
    Fetched fetched{.keys = {.access_key_id = field("AccessKeyId"),
                             .secret_access_key = field("SecretAccessKey"),
                             .session_token = field("Token")}};
    if (fetched.keys.access_key_id.empty() || fetched.keys.secret_access_key.empty()) {
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
    const UrlParts parts = url_parts(url);
    Source source("the container's endpoint", parts);
    const auto token = container_token();
    if (!token) return std::unexpected(token.error());
    if (token->find_first_of("\r\n") != std::string::npos) {
        return fail(ErrorCode::invalid_argument, "the token for " + source.name() + " has more than one line");
    }
    const auto body =
        source.request("GET", parts.target, token->empty() ? Headers{} : Headers{{"Authorization", *token}});
    return body ? parse(*body, source.name()) : Result<Fetched>(std::unexpected(body.error()));
}

Result<Fetched> fetch_from_machine() {
    std::string base = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    if (base.empty()) base = "http://169.254.169.254";
    const UrlParts parts = url_parts(base);
    std::string path = parts.target;
    while (path.ends_with('/')) path.pop_back();
    Source source("the machine's metadata service", parts);
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
    explicit Role(Fetched fetched) : fetched_(std::move(fetched)) {
        renewal_thread_ = std::jthread([this](const std::stop_token& stop) { renew(stop); });
    }

    S3Keys keys() const override {
        const std::scoped_lock lock(mutex_);
        return fetched_.keys;
    }
    bool renews_itself() const override { return true; }

private:
    void renew(const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        bool failed = false;
        while (!stop.stop_requested()) {
            const std::int64_t wait_ns = s3_role_renewal_ns(remaining_ns(), failed);
            changed_.wait_for(lock, stop, std::chrono::nanoseconds(wait_ns), [] { return false; });
            if (stop.stop_requested()) return;
            lock.unlock();
            auto fetched = fetch();
            lock.lock();
            failed = !fetched;
            if (fetched) {
                fetched_ = std::move(*fetched);
            } else {
                log_warn("cannot renew the role's credentials", {{"error", fetched.error().message}});
            }
        }
    }

    std::int64_t remaining_ns() const {
        return fetched_.expires_unix_ns == 0 ? std::numeric_limits<std::int64_t>::max()
                                             : fetched_.expires_unix_ns - unix_time_ns();
    }

    mutable std::mutex mutex_;
    std::condition_variable_any changed_;
    Fetched fetched_;
    std::jthread renewal_thread_;
};

}  // namespace

std::int64_t s3_role_renewal_ns(std::int64_t remaining_ns, bool failed) {
    const std::int64_t early_ns = std::max(remaining_ns - kBeforeExpiry_ns, remaining_ns / 2);
    return std::clamp(failed ? remaining_ns / 4 : early_ns, kSecond_ns, failed ? kRetryMost_ns : kRenewalDelayMax_ns);
}

Result<std::shared_ptr<const S3Credentials>> make_s3_role() {
    auto fetched = fetch();
    if (!fetched) return std::unexpected(fetched.error());
    return std::make_shared<Role>(std::move(*fetched));
}

}  // namespace larder::cache
