#pragma once

// The settings needed to reach a remote, besides its URL. They are set when a dataset is added and stored with the
// dataset. They hold no secrets: credentials come from the usual places of S3 clients (s3_credentials.h). All but
// follow_symlinks are for s3://.

#include <cstdint>
#include <string>

namespace larder::cache {

enum class S3Addressing : std::uint8_t { automatic, path, host };

struct RemoteOptions {
    std::string endpoint;  // for s3://: "https://host:port"; empty: $AWS_ENDPOINT_URL_S3, else Amazon's in the region
    std::string region;    // empty: $AWS_REGION, else the profile's, else us-east-1
    std::string profile;   // in the credentials and config files; empty: $AWS_PROFILE, else "default"
    // The part of a URL that names the bucket. `automatic`: the path if an endpoint was given, else the host.
    S3Addressing addressing = S3Addressing::automatic;
    bool unsigned_access = false;  // for public buckets
    bool requester_pays = false;
    // For file://: follows symbolic links wherever they lead. Whoever can write to the dataset's directory can then
    // read each file that the daemon can read.
    bool follow_symlinks = false;

    bool operator==(const RemoteOptions&) const = default;
};

}  // namespace larder::cache
