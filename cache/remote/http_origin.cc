#include "cache/remote/http_origin.h"

#include <curl/curl.h>

#include <utility>

#include "cache/remote/azure_origin.h"
#include "cache/remote/gcs_origin.h"
#include "cache/remote/s3_origin.h"
#include "cache/remote/store_error.h"

namespace larder::cache {
namespace {

class PlainOrigin final : public HttpOrigin {
public:
    explicit PlainOrigin(std::string endpoint) : endpoint_(std::move(endpoint)) {}

    const std::string& endpoint() const override { return endpoint_; }
    Result<curl_slist*> prepare(CURL*, const HttpGet&, curl_slist* headers) const override { return headers; }
    bool follows_redirects() const override { return true; }
    std::string explain(int status, std::string_view body) const override {
        if (std::string tls = explain_plain_request_to_tls(status, body); !tls.empty()) return tls;
        if (status == 401)
            return "the server requires a login, which larder does not support: serve the data without one, or over "
                   "s3://, gs:// or az://";
        if (status == 403) return "the server refuses to show it to this machine; check its access rules and the path";
        if (status == 404) return "the server has no such object: check the URL";
        return "";
    }

private:
    std::string endpoint_;
};

}  // namespace

std::string endpoint_of_url(std::string_view url) {
    const std::size_t host = url.find("://");
    return std::string(url.substr(0, host == std::string_view::npos ? url.size() : url.find('/', host + 3)));
}

Result<HttpRoot> make_http_root(const RemoteUrl& url, const RemoteOptions& options) {
    switch (url.scheme) {
        case RemoteScheme::s3: return make_s3_root(url, options);
        case RemoteScheme::gcs: return make_gcs_root(url, options);
        case RemoteScheme::azure: return make_azure_root(url, options);
        case RemoteScheme::file:
        case RemoteScheme::http: break;
    }
    return HttpRoot{.origin = std::make_shared<PlainOrigin>(url.base), .url = url.text()};
}

}  // namespace larder::cache
