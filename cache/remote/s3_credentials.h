#pragma once

// Finds credentials for s3://, in the places where every S3 client looks, in this order:
//
// - the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), unless a profile is named;
// - the profile in the shared credentials and config files (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE, ~/.aws/...);
// - the container's endpoint (AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI);
// - the machine's role (the instance metadata service, version 2).
//
// Credentials of a role are renewed before they expire (s3_role.h). Credentials are never logged.

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
    // Returns the current keys. Any thread; never blocks.
    virtual S3Keys keys() const = 0;
    // True if the keys are renewed automatically.
    virtual bool renews_itself() const { return false; }
};

// Settings from the environment and the files. Roles are not included.
struct S3Profile {
    S3Keys keys;           // empty: none found
    std::string region;    // empty: not set
    std::string endpoint;  // empty: not set
};
Result<S3Profile> read_s3_profile(const RemoteOptions& options);

// May block for some seconds to ask the role's endpoint. The error lists the places searched.
Result<std::shared_ptr<const S3Credentials>> find_s3_credentials(const RemoteOptions& options,
                                                                 const S3Profile& profile);

}  // namespace larder::cache
