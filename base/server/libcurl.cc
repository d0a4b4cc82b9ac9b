#include "base/server/libcurl.h"

#include <curl/curl.h>

#include <string>

namespace larder {

Result<void> init_libcurl() {
    static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (initialised == CURLE_OK) return {};
    return fail(ErrorCode::internal, std::string("libcurl: ") + curl_easy_strerror(initialised));
}

}  // namespace larder
