#include "tools/cli/s3_options.h"

#include <utility>

namespace larder::cli {

boost::json::object S3Choice::json() const {
    boost::json::object remote;
    for (const auto& [key, value] : {std::pair{"endpoint", &endpoint}, std::pair{"region", &region},
                                     std::pair{"profile", &profile}, std::pair{"addressing", &addressing}}) {
        if (!value->empty()) remote[key] = *value;
    }
    if (unsigned_access) remote["unsigned"] = true;
    if (requester_pays) remote["requester_pays"] = true;
    return remote;
}

void add_s3_options(CLI::App& app, S3Choice& choice, const std::string& whose) {
    app.add_option("--endpoint", choice.endpoint, "Of s3://: https://host:port. Default: Amazon's of the region");
    app.add_option("--region", choice.region, "Of s3://. Default: as " + whose + " environment or profile says");
    app.add_option("--profile", choice.profile, "Of s3://: in " + whose + " shared credentials files");
    app.add_option("--addressing", choice.addressing, "Of s3://: where the bucket is named: auto, path or host")
        ->check(CLI::IsMember({"auto", "path", "host"}));
    app.add_flag("--unsigned", choice.unsigned_access, "Of s3://: a public bucket, no credentials");
    app.add_flag("--requester-pays", choice.requester_pays, "Of s3://: agree to pay for the requests");
}

}  // namespace larder::cli
