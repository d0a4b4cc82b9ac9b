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
#include <vector>

#include "base/clock.h"
#include "base/environment.h"
#include "base/file.h"
#include "base/server/logging.h"

namespace larder::cache {
namespace {

namespace json = boost::json;

constexpr long kTimeout_ms = 2'000;
constexpr std::int64_t kSecond_ns = 1'000'000'000;
constexpr std::int64_t kBeforeExpiry_ns = 300 * kSecond_ns;
constexpr std::int64_t kRetryMost_ns = 60 * kSecond_ns;
constexpr std::int64_t kRenewalDelayMax_ns = std::int64_t{24} * 3600 * kSecond_ns;
constexpr std::size_t kAnswerBytesMax = 64 << 10;

struct Ask {
    std::string who;  // for messages: without path and query, with which anyone could fetch the credentials
    const char* method = "GET";
    std::string url;
    std::vector<std::string> headers;
};

std::size_t keep(char* data, std::size_t size, std::size_t count, void* into) {
    auto& text = *static_cast<std::string*>(into);
    if (text.size() + size * count > kAnswerBytesMax) return CURL_WRITEFUNC_ERROR;
    text.append(data, size * count);
    return size * count;
}

Result<std::string> ask(const Ask& what) {
    CURL* easy = curl_easy_init();
    if (easy == nullptr) return fail(ErrorCode::internal, "libcurl");
    curl_slist* headers = nullptr;
    for (const std::string& header : what.headers) headers = curl_slist_append(headers, header.c_str());
    std::string body;
    curl_easy_setopt(easy, CURLOPT_URL, what.url.c_str());
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, what.method);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, kTimeout_ms);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &keep);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &body);
    const CURLcode code = curl_easy_perform(easy);
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    if (code != CURLE_OK) return fail(ErrorCode::unavailable, what.who + ": " + curl_easy_strerror(code));
    if (status != 200) return fail(ErrorCode::unavailable, what.who + ": HTTP " + std::to_string(status));
    return body;
}

struct Fetched {
    S3Keys keys;
    std::int64_t expires_unix_ns = 0;  // 0: never
};

Result<Fetched> parse(const std::string& text, const std::string& from) {
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
        return fail(ErrorCode::protocol, from + " gave no credentials");
    }
    const std::string expires = field("Expiration");
    if (!expires.empty()) {
        std::tm parts{};
        if (::strptime(expires.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr) {
            return fail(ErrorCode::protocol, from + " gave credentials with an expiry that is no time");
        }
        fetched.expires_unix_ns = std::int64_t{::timegm(&parts)} * kSecond_ns;
    }
    return fetched;
}

// Returns "http://host:port", without user, path or query; empty if `url` is not a URL.
std::string host_of(const std::string& url) {
    CURLU* parts = curl_url();
    std::string host;
    if (curl_url_set(parts, CURLUPART_URL, url.c_str(), 0) == CURLUE_OK) {
        for (const CURLUPart part : {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_OPTIONS, CURLUPART_QUERY,
                                     CURLUPART_FRAGMENT, CURLUPART_PATH}) {
            curl_url_set(parts, part, nullptr, 0);
        }
        char* text = nullptr;
        if (curl_url_get(parts, CURLUPART_URL, &text, 0) == CURLUE_OK) host = text;
        curl_free(text);
        while (host.ends_with('/')) host.pop_back();
    }
    curl_url_cleanup(parts);
    return host;
}

std::string with_host(const std::string& who, const std::string& url) {
    const std::string host = host_of(url);
    return host.empty() ? who : who + " " + host;
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

Result<Fetched> fetch_of_container(const std::string& url) {
    Ask what{.who = with_host("the container's endpoint", url), .url = url};
    const auto token = container_token();
    if (!token) return std::unexpected(token.error());
    if (token->find_first_of("\r\n") != std::string::npos) {
        return fail(ErrorCode::invalid_argument, "the token for " + what.who + " has more than one line");
    }
    if (!token->empty()) what.headers.push_back("Authorization: " + *token);
    const auto body = ask(what);
    return body ? parse(*body, what.who) : Result<Fetched>(std::unexpected(body.error()));
}

Result<Fetched> fetch_of_machine() {
    std::string base = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    if (base.empty()) base = "http://169.254.169.254";
    while (base.ends_with('/')) base.pop_back();
    const std::string who = with_host("the machine's metadata service", base);
    const auto token = ask({.who = who,
                            .method = "PUT",
                            .url = base + "/latest/api/token",
                            .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"}});
    if (!token) return std::unexpected(token.error());
    const std::vector<std::string> shown{"X-aws-ec2-metadata-token: " + *token};
    const std::string roles = base + "/latest/meta-data/iam/security-credentials/";
    auto role = ask({.who = who, .url = roles, .headers = shown});
    if (!role) return std::unexpected(role.error());
    role->erase(std::min(role->size(), role->find_first_of("\r\n")));
    const auto body = ask({.who = who, .url = roles + *role, .headers = shown});
    return body ? parse(*body, who) : Result<Fetched>(std::unexpected(body.error()));
}

Result<Fetched> fetch() {
    const std::string full = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (!full.empty()) return fetch_of_container(full);
    const std::string relative = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    if (!relative.empty()) return fetch_of_container("http://169.254.170.2" + relative);
    if (environment("AWS_EC2_METADATA_DISABLED") == "true") {
        return fail(ErrorCode::unavailable, "AWS_EC2_METADATA_DISABLED is true");
    }
    return fetch_of_machine();
}

class Role final : public S3Credentials {
public:
    explicit Role(Fetched fetched) : fetched_(std::move(fetched)) {
        renewing_ = std::jthread([this](const std::stop_token& stop) { renew(stop); });
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
    std::jthread renewing_;
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
