#include "cache/remote/gcs_origin.h"

#include <boost/json.hpp>
#include <curl/curl.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "base/environment.h"
#include "cache/remote/bucket_listing.h"
#include "cache/remote/gcs_listing.h"
#include "cache/remote/google_token.h"
#include "cache/remote/store_error.h"
#include "cache/remote/trusted_endpoint.h"

namespace larder::cache {
namespace {

constexpr std::string_view kGcsEndpoint = "https://storage.googleapis.com";
constexpr std::int64_t kClockSkew_ns = 60'000'000'000;

// The error of the JSON API: {"error": {"message": ...}}.
std::string message_of_json(std::string_view body) {
    boost::system::error_code failure;
    const boost::json::value value = boost::json::parse({body.data(), body.size()}, failure);
    const boost::json::object* object = failure ? nullptr : value.if_object();
    const boost::json::value* error = object == nullptr ? nullptr : object->if_contains("error");
    const boost::json::object* fields = error == nullptr ? nullptr : error->if_object();
    const boost::json::value* message = fields == nullptr ? nullptr : fields->if_contains("message");
    if (message == nullptr || !message->is_string()) return "";
    const std::string text(message->get_string());
    return text.substr(0, text.find_first_of("\r\n"));
}

class GcsOrigin final : public HttpOrigin, public BucketListing {
public:
    GcsOrigin(std::string endpoint, std::string bucket, std::shared_ptr<const GoogleToken> token)
        : endpoint_(std::move(endpoint)), bucket_(std::move(bucket)), token_(std::move(token)) {}

    const std::string& endpoint() const override { return endpoint_; }
    const char* version_header() const override { return "x-goog-generation"; }
    bool follows_redirects() const override { return false; }

    Result<curl_slist*> prepare(CURL*, const HttpGet&, curl_slist* headers) const override {
        // Without this header, the store decompresses objects whose Content-Encoding is gzip, and ignores ranges.
        headers = curl_slist_append(headers, "Accept-Encoding: gzip");
        if (token_ == nullptr) return headers;
        return curl_slist_append(headers, ("Authorization: Bearer " + token_->value()).c_str());
    }

    std::string explain(int status, std::string_view body) const override {
        if (std::string tls = explain_plain_request_to_tls(status, body); !tls.empty()) return tls;
        StoreError error = parse_store_error(body);
        // The JSON API, which only lists, has no code that tells a missing bucket.
        if (std::string message = message_of_json(body); !message.empty()) {
            error = {.code = status == 404 ? "NoSuchBucket" : "", .message = std::move(message), .region = {}};
        }
        return explain_store_error(error, hint(status, error.code));
    }

    bool lacks_bucket(int status, std::string_view body) const override {
        return status == 404 && parse_store_error(body).code == "NoSuchBucket";
    }

    // The token expired before the request arrived, or its renewal is late. The store's clock may be ahead.
    bool may_succeed_later(int status, std::string_view) const override {
        return status == 401 && token_ != nullptr && token_->expires_within(kClockSkew_ns);
    }

    std::string page_url(std::string_view prefix, std::string_view continuation) const override {
        return endpoint_ + "/storage/v1/b/" + bucket_ + "/o?" + gcs_list_query(prefix, continuation);
    }
    Result<BucketPage> parse_page(std::span<const std::byte> body) const override { return parse_gcs_page(body); }

private:
    std::string hint(int status, std::string_view code) const {
        if (code == "NoSuchBucket") {
            return "there is no bucket " + bucket_ + " at " + endpoint_ + ": check the URL and --endpoint";
        }
        if (status == 401 && token_ != nullptr) {
            const std::string renewal_error = token_->renewal_error();
            if (!renewal_error.empty()) return "the token could not be renewed: " + renewal_error;
            return "the token is not accepted: check the service account";
        }
        if (status != 401 && status != 403) return "";
        if (token_ == nullptr) {
            return "bucket " + bucket_ + " is not public: add it with credentials, without --unsigned";
        }
        return "the credentials are valid, but may not do this: give the service account the role "
               "roles/storage.objectViewer on bucket " +
               bucket_ + ", or use another --profile";
    }

    std::string endpoint_;
    std::string bucket_;
    std::shared_ptr<const GoogleToken> token_;  // null: a public bucket
};

// The endpoint that Google's clients use instead of the store's own; it may lack its scheme.
std::string endpoint_of_environment() {
    std::string endpoint = environment("STORAGE_EMULATOR_HOST");
    if (!endpoint.empty() && !endpoint.contains("://")) endpoint.insert(0, "http://");
    return endpoint;
}

}  // namespace

Result<HttpRoot> make_gcs_root(const RemoteUrl& url, const RemoteOptions& options) {
    const std::string own_endpoint = endpoint_of_environment();
    std::string endpoint = options.endpoint.empty() ? own_endpoint : options.endpoint;
    if (endpoint.empty()) endpoint = kGcsEndpoint;
    if (auto checked = check_endpoint(endpoint); !checked) return std::unexpected(checked.error());
    while (endpoint.ends_with('/')) endpoint.pop_back();
    std::shared_ptr<const GoogleToken> token;
    if (!options.unsigned_access) {
        constexpr std::array<std::string_view, 1> kHosts{".googleapis.com"};
        if (!options.endpoint.empty() && options.endpoint != own_endpoint && !is_endpoint_of(endpoint, kHosts)) {
            return fail(ErrorCode::permission_denied,
                        "a token of Google is sent only to https://*.googleapis.com, and to the endpoint that "
                        "STORAGE_EMULATOR_HOST in the daemon's environment names: set it there, or read a public "
                        "bucket with --unsigned");
        }
        auto found = find_google_token(options);
        if (!found) return std::unexpected(found.error());
        token = std::move(*found);
    }
    const std::string bucket_url = endpoint + "/" + url.base;
    return bucket_root(std::make_shared<const GcsOrigin>(endpoint, url.base, std::move(token)), bucket_url, url.root);
}

}  // namespace larder::cache
