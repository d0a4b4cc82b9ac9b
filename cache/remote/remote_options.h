#pragma once

// The settings needed to reach a remote, besides its URL. They are set when a dataset is added and stored with the
// dataset. They hold no secrets: credentials come from the usual places of each store's clients (s3_credentials.h,
// google_token.h, azure_account.h). All but follow_symlinks are for s3://; endpoint, profile and unsigned_access are
// for gs:// and az://, too.

#include <cstdint>
#include <string>

namespace larder::cache {

enum class S3Addressing : std::uint8_t { automatic, path, host };

struct RemoteOptions {
    // "https://host:port". Empty: of the environment, else the store's own. s3://: $AWS_ENDPOINT_URL_S3, Amazon's in
    // the region. gs://: $STORAGE_EMULATOR_HOST. az://: of the connection string, the account's.
    std::string endpoint;
    std::string region;  // empty: $AWS_REGION, else the profile's, else us-east-1
    // s3://: in the credentials and config files; empty: $AWS_PROFILE, else "default". gs://: a service account's file
    // in gcloud's directory, without .json. az://: a section of ~/.azure/config. Empty: of the environment.
    std::string profile;
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
