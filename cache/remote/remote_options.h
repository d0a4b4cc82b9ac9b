#pragma once

// What reaches a remote besides its URL. Set when a dataset is added and kept with it; secrets are never among it:
// credentials come from where S3 clients look for them (s3_credentials.h).

#include <cstdint>
#include <string>

namespace larder::cache {

enum class S3Addressing : std::uint8_t { automatic, path, host };

struct RemoteOptions {
    std::string endpoint;  // of s3://: "https://host:port"; empty: $AWS_ENDPOINT_URL_S3, else Amazon's of the region
    std::string region;    // empty: $AWS_REGION, the profile's, else us-east-1
    std::string profile;   // of the credentials and config files; empty: $AWS_PROFILE, else "default"
    // Where the bucket is named. `automatic`: in the path at an endpoint that was given, else in the host.
    S3Addressing addressing = S3Addressing::automatic;
    bool unsigned_access = false;  // for public buckets
    bool requester_pays = false;

    bool operator==(const RemoteOptions&) const = default;
};

}  // namespace larder::cache
