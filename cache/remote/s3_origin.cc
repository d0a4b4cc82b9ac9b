#include "cache/remote/s3_origin.h"

#include <curl/curl.h>

#include <memory>
#include <string>
#include <utility>

#include "cache/remote/bucket_listing.h"
#include "cache/remote/s3_credentials.h"
#include "cache/remote/s3_hint.h"
#include "cache/remote/s3_listing.h"
#include "cache/remote/store_error.h"

namespace larder::cache {
namespace {

// The SHA-256 of an empty body, as a GET has. S3 requires this header.
constexpr const char* kEmptyBodyHeader =
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

class S3Origin final : public HttpOrigin, public BucketListing {
public:
    S3Origin(std::string endpoint, std::string bucket, std::string bucket_url, const std::string& region,
             bool requester_pays, std::shared_ptr<const S3Credentials> credentials)
        : endpoint_(std::move(endpoint)),
          bucket_(std::move(bucket)),
          bucket_url_(std::move(bucket_url)),
          signature_("aws:amz:" + region + ":s3"),
          requester_pays_(requester_pays),
          credentials_(std::move(credentials)) {}

    const std::string& endpoint() const override { return endpoint_; }

    Result<curl_slist*> prepare(CURL* easy, const HttpGet&, curl_slist* headers) const override {
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

    std::string explain(int status, std::string_view body) const override {
        if (std::string tls = explain_plain_request_to_tls(status, body); !tls.empty()) return tls;
        const StoreError error = parse_store_error(body);
        return explain_store_error(error, s3_hint(status, error.code,
                                                  {.bucket = bucket_,
                                                   .endpoint = endpoint_,
                                                   .region = error.region,
                                                   .is_signed = credentials_ != nullptr,
                                                   .requester_pays = requester_pays_}));
    }

    // S3 answers 404 for any object of a missing bucket; the error code tells a missing bucket from a missing object.
    bool lacks_bucket(int status, std::string_view body) const override {
        return status == 404 && parse_store_error(body).code == "NoSuchBucket";
    }

    // The keys expired before the request arrived, or their renewal is late.
    bool may_succeed_later(int status, std::string_view body) const override {
        if (credentials_ == nullptr || !credentials_->renews_itself() || (status != 400 && status != 403)) return false;
        return parse_store_error(body).code == "ExpiredToken";
    }

    std::string page_url(std::string_view prefix, std::string_view continuation) const override {
        return bucket_url_ + "?" + s3_list_query(prefix, continuation);
    }
    Result<BucketPage> parse_page(std::span<const std::byte> body) const override { return parse_s3_page(body); }

private:
    std::string endpoint_;
    std::string bucket_;
    std::string bucket_url_;
    std::string signature_;
    bool requester_pays_;
    std::shared_ptr<const S3Credentials> credentials_;
};

}  // namespace

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
    const std::string bucket_url = bucket_is_in_path
                                       ? endpoint + "/" + url.base
                                       : endpoint.substr(0, scheme + 3) + url.base + "." + endpoint.substr(scheme + 3);
    return bucket_root(std::make_shared<const S3Origin>(endpoint, url.base, bucket_url, region, options.requester_pays,
                                                        std::move(credentials)),
                       bucket_url, url.root);
}

}  // namespace larder::cache
