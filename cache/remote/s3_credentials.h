#pragma once

// Credentials of s3://, from the places every S3 client looks, in this order: the environment (AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), unless a profile is named; the profile in the shared credentials and
// config files (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE, ~/.aws/...); the container's endpoint
// (AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI); the machine's role (the instance metadata service, version 2).
// A role's are fetched anew before they expire (s3_role.h). Nothing here is ever logged.

#include <memory>
#include <string>

#include "base/error.h"
#include "cache/remote/remote_options.h"

namespace larder::cache {

struct S3Keys {
    std::string access_key_id;
    std::string secret_access_key;
    std::string session_token;  // empty: none
};

class S3Credentials {
public:
    virtual ~S3Credentials() = default;
    // The keys as they are now; any thread, never blocks.
    virtual S3Keys keys() const = 0;
    // Whether others will follow by themselves.
    virtual bool are_renewed() const { return false; }
};

// What the environment and the files say: everything but roles.
struct S3Profile {
    S3Keys keys;           // empty: none were found
    std::string region;    // empty: nobody says
    std::string endpoint;  // likewise
};
Result<S3Profile> read_s3_profile(const RemoteOptions& options);

// May ask the role's endpoint, and so block for some seconds. The error says where was looked.
Result<std::shared_ptr<const S3Credentials>> find_s3_credentials(const RemoteOptions& options,
                                                                 const S3Profile& profile);

}  // namespace larder::cache
