#pragma once

// The HTTP origin for requests to a peer. Sends the cluster's token and never uses a proxy.

#include <string>

#include "cache/remote/http_get.h"

namespace larder::cache {

class PeerOrigin final : public HttpOrigin {
public:
    PeerOrigin(std::string endpoint, const std::string& token);

    const std::string& endpoint() const override { return endpoint_; }
    Result<curl_slist*> prepare(CURL* easy, const HttpGet& /*get*/, curl_slist* headers) const override;
    bool follows_redirects() const override { return false; }
    std::string explain(int status, std::string_view body) const override;

private:
    std::string endpoint_;
    std::string authorization_;  // the header; empty: none
};

}  // namespace larder::cache
