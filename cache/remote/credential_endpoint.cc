#include "cache/remote/credential_endpoint.h"

#include <curl/curl.h>

#include <memory>

namespace larder::cache {

// A URL in its parts; all are empty if the text is not a URL.
struct CredentialUrl {
    std::string host;      // "http://host" or "http://host:port", as it was written
    std::string endpoint;  // "http://host:port"
    std::string target;    // the path and the query
};

namespace {

constexpr std::int64_t kTimeout_ms = 2'000;
constexpr std::size_t kAnswerBytesMax = 64 << 10;

CredentialUrl parts_of(const std::string& url) {
    const std::unique_ptr<CURLU, void (*)(CURLU*)> parts(curl_url(), curl_url_cleanup);
    const auto get = [&](CURLUPart part, unsigned flags) -> std::string {
        char* found = nullptr;
        if (curl_url_get(parts.get(), part, &found, flags) != CURLUE_OK) return "";
        std::string text = found;
        curl_free(found);
        return text;
    };
    if (curl_url_set(parts.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return {};
    CredentialUrl read{.target = get(CURLUPART_PATH, 0)};
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

}  // namespace

CredentialEndpoint::CredentialEndpoint(const std::string& name, const std::string& url, bool through_proxy)
    : CredentialEndpoint(name, parts_of(url), through_proxy) {}

CredentialEndpoint::CredentialEndpoint(const std::string& name, const CredentialUrl& url, bool through_proxy)
    : name_(url.host.empty() ? name : name + " " + url.host),
      target_(url.target),
      through_proxy_(through_proxy),
      client_(url.endpoint) {}

Result<HttpResponse> CredentialEndpoint::ask(std::string_view method, const std::string& target, Headers headers,
                                             std::string_view body) {
    auto answer = client_.request(method, target, body,
                                  {.timeout_ms = kTimeout_ms,
                                   .answer_bytes_max = kAnswerBytesMax,
                                   .headers = std::move(headers),
                                   .uses_environment_proxy = through_proxy_});
    if (!answer) return fail(ErrorCode::unavailable, name_ + ": " + answer.error().message);
    return answer;
}

Result<std::string> CredentialEndpoint::request(std::string_view method, const std::string& target, Headers headers) {
    auto answer = ask(method, target, std::move(headers));
    if (!answer) return std::unexpected(answer.error());
    if (answer->status == 200) return std::move(answer->body);
    return fail(ErrorCode::unavailable, name_ + ": HTTP " + std::to_string(answer->status));
}

}  // namespace larder::cache
