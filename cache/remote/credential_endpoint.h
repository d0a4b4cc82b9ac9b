#pragma once

// An HTTP endpoint of a platform that gives credentials, such as a machine's metadata service or a token server. Its
// requests block for at most two seconds each, and follow no redirect.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/server/http_client.h"

namespace larder::cache {

class CredentialEndpoint {
public:
    using Headers = std::vector<std::pair<std::string, std::string>>;

    // `name` is for messages. `through_proxy`: requests use the proxy of the environment, which the services of a
    // machine are never reached through.
    CredentialEndpoint(const std::string& name, const std::string& url, bool through_proxy = false);

    // The name and the host. Never path and query: anyone who knows those of a container could fetch its credentials.
    const std::string& name() const { return name_; }
    // The path and the query of the URL.
    const std::string& target() const { return target_; }

    // Returns an answer of any status.
    Result<HttpResponse> ask(std::string_view method, const std::string& target, Headers headers,
                             std::string_view body = {});
    // Returns the body of an answer with status 200. Another status is an error.
    Result<std::string> request(std::string_view method, const std::string& target, Headers headers);

private:
    CredentialEndpoint(const std::string& name, const struct CredentialUrl& url, bool through_proxy);

    std::string name_;
    std::string target_;
    bool through_proxy_;
    HttpClient client_;
};

}  // namespace larder::cache
