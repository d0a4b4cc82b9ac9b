#include "cache/remote/http_origin.h"

#include <curl/curl.h>
#include <pugixml.hpp>

#include <utility>

#include "base/server/percent_encoding.h"
#include "cache/remote/s3_credentials.h"
#include "cache/remote/s3_hint.h"

namespace larder::cache {
namespace {

// The SHA-256 of an empty body, as a GET has. S3 requires this header.
constexpr const char* kEmptyBodyHeader =
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// A TLS server answers a plain HTTP request with status 400 and a text.
bool wants_tls(int status, std::string_view body) {
    return status == 400 && body.find("HTTPS port") != std::string_view::npos;
}

constexpr std::string_view kWriteHttps = "the server speaks TLS on this port: write https://";

class PlainOrigin final : public HttpOrigin {
public:
    explicit PlainOrigin(std::string endpoint) : endpoint_(std::move(endpoint)) {}

    const std::string& endpoint() const override { return endpoint_; }
    Result<curl_slist*> prepare(CURL*, curl_slist* headers) const override { return headers; }
    bool follows_redirects() const override { return true; }
    std::string explain(int status, std::string_view body) const override {
        if (wants_tls(status, body)) return std::string(kWriteHttps);
        if (status == 401)
            return "the server requires a login, which larder does not support: serve the data without one, or over "
                   "s3://";
        if (status == 403) return "the server refuses to show it to this machine; check its access rules and the path";
        if (status == 404) return "the server has no such object: check the URL";
        return "";
    }

private:
    std::string endpoint_;
};

class S3Origin final : public HttpOrigin {
public:
    S3Origin(std::string endpoint, std::string bucket, const std::string& region, bool requester_pays,
             std::shared_ptr<const S3Credentials> credentials)
        : endpoint_(std::move(endpoint)),
          bucket_(std::move(bucket)),
          signature_("aws:amz:" + region + ":s3"),
          requester_pays_(requester_pays),
          credentials_(std::move(credentials)) {}

    const std::string& endpoint() const override { return endpoint_; }

    Result<curl_slist*> prepare(CURL* easy, curl_slist* headers) const override {
        headers = curl_slist_append(headers, kEmptyBodyHeader);
        if (requester_pays_) headers = curl_slist_append(headers, "x-amz-request-payer: requester");
        if (credentials_ == nullptr) return headers;
        const S3Keys keys = credentials_->keys();
        if (!keys.session_token.empty()) {
            headers = curl_slist_append(headers, ("x-amz-security-token: " + keys.session_token).c_str());
        }
        curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, signature_.c_str());
        curl_easy_setopt(easy, CURLOPT_USERNAME, keys.access_key_id.c_str());
        curl_easy_setopt(easy, CURLOPT_PASSWORD, keys.secret_access_key.c_str());
        return headers;
    }

    bool follows_redirects() const override { return false; }

    // Quotes only code and message of the body, because the rest may contain what was signed.
    std::string explain(int status, std::string_view body) const override {
        if (wants_tls(status, body)) return std::string(kWriteHttps);
        pugi::xml_document document;
        const pugi::xml_node error = error_of(document, body);
        std::string text = error.child_value("Code");
        const std::string message = error.child_value("Message");
        const std::string hint = s3_hint(status, error.child_value("Code"),
                                         {.bucket = bucket_,
                                          .endpoint = endpoint_,
                                          .region = error.child_value("Region"),
                                          .is_signed = credentials_ != nullptr,
                                          .requester_pays = requester_pays_});
        if (!hint.empty()) text += (text.empty() ? "" : ": ") + hint;
        if (!message.empty()) text += hint.empty() ? ": " + message : " (the server says: " + message + ")";
        return text;
    }

    // S3 answers 404 for any object of a missing bucket; the error code tells a missing bucket from a missing object.
    bool lacks_bucket(int status, std::string_view body) const override {
        pugi::xml_document document;
        return status == 404 && std::string_view(error_of(document, body).child_value("Code")) == "NoSuchBucket";
    }

    // The keys expired before the request arrived, or their renewal is late.
    bool may_succeed_later(int status, std::string_view body) const override {
        if (credentials_ == nullptr || !credentials_->renews_itself() || (status != 400 && status != 403)) return false;
        pugi::xml_document document;
        return std::string_view(error_of(document, body).child_value("Code")) == "ExpiredToken";
    }

private:
    static pugi::xml_node error_of(pugi::xml_document& document, std::string_view body) {
        return document.load_buffer(body.data(), body.size()) ? document.child("Error") : pugi::xml_node();
    }

    std::string endpoint_;
    std::string bucket_;
    std::string signature_;
    bool requester_pays_;
    std::shared_ptr<const S3Credentials> credentials_;
};

Result<HttpRoot> make_s3_root(const RemoteUrl& url, const RemoteOptions& options) {
    const auto profile = read_s3_profile(options);
    if (!profile) return std::unexpected(profile.error());
    std::string region = options.region.empty() ? profile->region : options.region;
    if (region.empty()) region = "us-east-1";
    std::string endpoint = options.endpoint.empty() ? profile->endpoint : options.endpoint;
    const bool endpoint_is_given = !endpoint.empty();
    if (!endpoint_is_given) endpoint = "https://s3." + region + ".amazonaws.com";
    if (auto checked = check_endpoint(endpoint); !checked) return std::unexpected(checked.error());
    while (endpoint.ends_with('/')) endpoint.pop_back();
    const std::size_t scheme = endpoint.find("://");
    std::shared_ptr<const S3Credentials> credentials;
    if (!options.unsigned_access) {
        auto found = find_s3_credentials(options, *profile);
        if (!found) return std::unexpected(found.error());
        credentials = std::move(*found);
    }
    // A certificate for *.host is not valid for a bucket with a dot in its name.
    const bool bucket_is_in_path =
        options.addressing == S3Addressing::path || (options.addressing == S3Addressing::automatic &&
                                                     (endpoint_is_given || url.base.find('.') != std::string::npos));
    std::string root_url = bucket_is_in_path
                               ? endpoint + "/" + url.base
                               : endpoint.substr(0, scheme + 3) + url.base + "." + endpoint.substr(scheme + 3);
    HttpRoot root{.origin = std::make_shared<S3Origin>(endpoint, url.base, region, options.requester_pays,
                                                       std::move(credentials)),
                  .url = std::move(root_url)};
    if (!url.root.empty()) {
        root.url += '/';
        root.url += percent_encode_path(url.root);
    }
    return root;
}

}  // namespace

std::string endpoint_of_url(std::string_view url) {
    const std::size_t host = url.find("://");
    return std::string(url.substr(0, host == std::string_view::npos ? url.size() : url.find('/', host + 3)));
}

Result<HttpRoot> make_http_root(const RemoteUrl& url, const RemoteOptions& options) {
    if (url.scheme == RemoteScheme::s3) return make_s3_root(url, options);
    return HttpRoot{.origin = std::make_shared<PlainOrigin>(url.base), .url = url.text()};
}

}  // namespace larder::cache
