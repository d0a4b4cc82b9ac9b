#include "tools/cli/remote_flags.h"

#include <utility>

#include "cache/remote/remote_url.h"

namespace larder::cli {

boost::json::object RemoteChoice::json() const {
    boost::json::object remote;
    for (const auto& [key, value] : {std::pair{"endpoint", &endpoint}, std::pair{"region", &region},
                                     std::pair{"profile", &profile}, std::pair{"addressing", &addressing}}) {
        if (!value->empty()) remote[key] = *value;
    }
    if (unsigned_access) remote["unsigned"] = true;
    if (requester_pays) remote["requester_pays"] = true;
    if (follow_symlinks) remote["follow_symlinks"] = true;
    return remote;
}

Result<void> RemoteChoice::check() const {
    if (endpoint.empty()) return {};
    auto checked = cache::check_endpoint(endpoint);
    return checked ? checked : std::unexpected(checked.error().within("--endpoint"));
}

void add_remote_options(CLI::App& app, RemoteChoice& choice, const std::string& whose) {
    app.add_option("--endpoint", choice.endpoint,
                   "For s3://, gs:// and az://: the endpoint, https://host:port. Default: the store's own, and for "
                   "s3:// Amazon's for the region");
    app.add_option("--region", choice.region,
                   "For s3://: the region. Default: from " + whose + " environment or profile");
    app.add_option("--profile", choice.profile,
                   "For s3://: the profile in " + whose +
                       " shared credentials files; for gs://: a service account's file in gcloud's directory, without "
                       ".json; for az://: a section of ~/.azure/config");
    app.add_option("--addressing", choice.addressing,
                   "For s3://: where the request names the bucket: auto, path or host")
        ->check(CLI::IsMember({"auto", "path", "host"}));
    app.add_flag("--unsigned", choice.unsigned_access,
                 "For s3://, gs:// and az://: read a public bucket without credentials");
    app.add_flag("--requester-pays", choice.requester_pays, "For s3://: agree to pay for the requests");
    app.add_flag("--follow-symlinks", choice.follow_symlinks,
                 "For a directory: follow symbolic links that lead out of it. Of a daemon only root and the daemon's "
                 "user may ask this: who can write to the directory can then read what the daemon can read");
}

}  // namespace larder::cli
