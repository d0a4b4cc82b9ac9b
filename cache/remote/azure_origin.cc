#include "cache/remote/azure_origin.h"

#include <curl/curl.h>

#include <array>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "cache/remote/azure_account.h"
#include "cache/remote/azure_listing.h"
#include "cache/remote/azure_signature.h"
#include "cache/remote/bucket_listing.h"
#include "cache/remote/store_error.h"

namespace larder::cache {
namespace {

constexpr std::string_view kAzureVersion = "2021-12-02";

// "Sun, 06 Nov 1994 08:49:37 GMT". No program of Larder sets a locale, so that the names are English.
std::string http_date(std::int64_t unix_ns) {
    const std::time_t unix_s = unix_ns / 1'000'000'000;
    std::tm parts{};
    ::gmtime_r(&unix_s, &parts);
    std::array<char, 40> text{};
    return {text.data(), std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

class AzureOrigin final : public HttpOrigin, public BucketListing {
public:
    AzureOrigin(AzureAccount account, std::string container)
        : account_(std::move(account)), container_(std::move(container)) {}

    const std::string& endpoint() const override { return account_.endpoint; }
    bool follows_redirects() const override { return false; }

    Result<curl_slist*> prepare(CURL* easy, const HttpGet& get, curl_slist* headers) const override {
        headers = curl_slist_append(headers, ("x-ms-version: " + std::string(kAzureVersion)).c_str());
        if (!account_.key.empty()) {
            const std::string date = http_date(unix_time_ns());
            const std::string range = range_of(get);
            const std::string authorization = sign_azure_request(account_.name, account_.key,
                                                                 {.url = get.url,
                                                                  .range = range.empty() ? "" : "bytes=" + range,
                                                                  .date = date,
                                                                  .version = kAzureVersion});
            headers = curl_slist_append(headers, ("x-ms-date: " + date).c_str());
            headers = curl_slist_append(headers, ("Authorization: " + authorization).c_str());
        } else if (!account_.sas.empty()) {
            const char* separator = get.url.contains('?') ? "&" : "?";
            curl_easy_setopt(easy, CURLOPT_URL, (get.url + separator + account_.sas).c_str());
        }
        return headers;
    }

    std::string explain(int status, std::string_view body) const override {
        if (std::string tls = explain_plain_request_to_tls(status, body); !tls.empty()) return tls;
        const StoreError error = parse_store_error(body);
        return explain_store_error(error, hint(status, error.code));
    }

    bool lacks_bucket(int status, std::string_view body) const override {
        return status == 404 && parse_store_error(body).code == "ContainerNotFound";
    }

    std::string page_url(std::string_view prefix, std::string_view continuation) const override {
        return account_.endpoint + "/" + container_ + "?" + azure_list_query(prefix, continuation);
    }
    Result<BucketPage> parse_page(std::span<const std::byte> body) const override { return parse_azure_page(body); }

private:
    std::string hint(int status, std::string_view code) const {
        const std::string container = "container " + container_;
        if (code == "ContainerNotFound") {
            return "there is no " + container + " at " + account_.endpoint +
                   ": check the URL, the account and --endpoint";
        }
        const bool is_public = account_.key.empty() && account_.sas.empty();
        // To those who have no access, a container does not exist.
        const bool is_hidden = code == "ResourceNotFound" || code == "PublicAccessNotPermitted";
        if (is_public && (status == 401 || status == 403 || is_hidden)) {
            return container + " is not public, or not there: add it with credentials, without --unsigned";
        }
        if (status != 403) return "";
        if (!account_.key.empty()) {
            return "account " + account_.name +
                   " refuses this key: check AZURE_STORAGE_KEY, this machine's clock (15 minutes at most), and the "
                   "account's network rules";
        }
        // AuthorizationPermissionMismatch, AuthorizationResourceTypeMismatch and the like.
        if (code.ends_with("Mismatch")) {
            return "the SAS token may not do this: it must allow reading and listing " + container + " (sp=rl)";
        }
        return "the SAS token is wrong, has expired or is not for this address: renew the daemon's credentials";
    }

    AzureAccount account_;
    std::string container_;
};

}  // namespace

Result<HttpRoot> make_azure_root(const RemoteUrl& url, const RemoteOptions& options) {
    auto account = find_azure_account(options);
    if (!account) return std::unexpected(account.error());
    const std::string container_url = account->endpoint + "/" + url.base;
    return bucket_root(std::make_shared<const AzureOrigin>(std::move(*account), url.base), container_url, url.root);
}

}  // namespace larder::cache
