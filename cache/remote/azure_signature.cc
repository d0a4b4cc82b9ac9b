#include "cache/remote/azure_signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/server/percent_encoding.h"
#include "cache/remote/base64.h"

namespace larder::cache {

std::string azure_string_to_sign(std::string_view account, const AzureRequest& request) {
    const std::size_t host = request.url.find("://") + 3;
    const std::size_t path_at = std::min(request.url.find('/', host), request.url.size());
    const std::string_view target = request.url.substr(path_at);
    const std::string_view path = target.substr(0, target.find('?'));
    std::string_view query = target.substr(std::min(path.size() + 1, target.size()));
    std::vector<std::pair<std::string, std::string>> parameters;
    while (!query.empty()) {
        const std::string_view parameter = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(query.size(), parameter.size() + 1));
        const std::size_t equals = std::min(parameter.find('='), parameter.size());
        parameters.emplace_back(parameter.substr(0, equals),
                                percent_decode_leniently(parameter.substr(std::min(equals + 1, parameter.size()))));
    }
    std::ranges::sort(parameters);

    // The empty lines are the headers from Content-Encoding to If-Unmodified-Since, which the request does not have.
    std::string text = "GET\n\n\n\n\n\n\n\n\n\n\n";
    text.append(request.range).append("\nx-ms-date:").append(request.date);
    text.append("\nx-ms-version:").append(request.version);
    text.append("\n/").append(account).append(path);
    for (const auto& [name, value] : parameters) text.append("\n").append(name).append(":").append(value);
    return text;
}

std::string sign_azure_request(std::string_view account, std::string_view key, const AzureRequest& request) {
    const std::string text = azure_string_to_sign(account, request);
    std::string digest(EVP_MAX_MD_SIZE, '\0');
    unsigned digest_bytes = 0;
    HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
         text.size(), reinterpret_cast<unsigned char*>(digest.data()), &digest_bytes);
    digest.resize(digest_bytes);
    return "SharedKey " + std::string(account) + ":" + base64_encode(digest);
}

}  // namespace larder::cache
