#include "cache/peers/peer_origin.h"

#include <curl/curl.h>

#include <utility>

namespace larder::cache {

PeerOrigin::PeerOrigin(std::string endpoint, const std::string& token)
    : endpoint_(std::move(endpoint)), authorization_(token.empty() ? "" : "Authorization: Bearer " + token) {}

Result<curl_slist*> PeerOrigin::prepare(CURL* easy, const HttpGet& /*get*/, curl_slist* headers) const {
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    return authorization_.empty() ? headers : curl_slist_append(headers, authorization_.c_str());
}

std::string PeerOrigin::explain(int status, std::string_view) const {
    return status == 401 ? "its token in [peers] differs from this node's" : "";
}

}  // namespace larder::cache
