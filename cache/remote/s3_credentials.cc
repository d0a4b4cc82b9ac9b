#include "cache/remote/s3_credentials.h"

#include <utility>

#include "base/environment.h"
#include "cache/remote/profile_section.h"
#include "cache/remote/s3_role.h"

namespace larder::cache {
namespace {

std::string first_non_empty(std::string a, std::string b) {
    return a.empty() ? std::move(b) : std::move(a);
}

std::string file_path(const char* variable, const char* name_in_home) {
    std::string given = environment(variable);
    if (!given.empty()) return given;
    const std::string home = environment("HOME");
    return home.empty() ? "" : home + "/.aws/" + name_in_home;
}

S3Keys keys_of(const ProfileSection& section) {
    return {.access_key_id = section_value(section, "aws_access_key_id"),
            .secret_access_key = section_value(section, "aws_secret_access_key"),
            .session_token = section_value(section, "aws_session_token")};
}

class FixedCredentials final : public S3Credentials {
public:
    explicit FixedCredentials(S3Keys keys) : keys_(std::move(keys)) {}
    S3Keys keys() const override { return keys_; }

private:
    S3Keys keys_;
};

}  // namespace

Result<S3Profile> read_s3_profile(const RemoteOptions& options) {
    S3Profile profile;
    const std::string name = first_non_empty(options.profile, first_non_empty(environment("AWS_PROFILE"), "default"));
    const auto credentials = read_profile_section(file_path("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name);
    if (!credentials) return std::unexpected(credentials.error());
    const auto config =
        read_profile_section(file_path("AWS_CONFIG_FILE", "config"), name == "default" ? name : "profile " + name);
    if (!config) return std::unexpected(config.error());

    const S3Keys environment_keys{.access_key_id = environment("AWS_ACCESS_KEY_ID"),
                                  .secret_access_key = environment("AWS_SECRET_ACCESS_KEY"),
                                  .session_token = environment("AWS_SESSION_TOKEN")};
    if (options.profile.empty() && !environment_keys.access_key_id.empty()) {
        profile.keys = environment_keys;
    } else {
        profile.keys = keys_of(*credentials);
        if (profile.keys.access_key_id.empty()) profile.keys = keys_of(*config);
    }
    profile.region = first_non_empty(first_non_empty(environment("AWS_REGION"), environment("AWS_DEFAULT_REGION")),
                                     section_value(*config, "region"));
    profile.endpoint =
        first_non_empty(first_non_empty(environment("AWS_ENDPOINT_URL_S3"), environment("AWS_ENDPOINT_URL")),
                        section_value(*config, "endpoint_url"));
    return profile;
}

Result<std::shared_ptr<const S3Credentials>> find_s3_credentials(const RemoteOptions& options,
                                                                 const S3Profile& profile) {
    if (!profile.keys.access_key_id.empty()) {
        if (profile.keys.secret_access_key.empty()) {
            return fail(ErrorCode::invalid_argument, "S3 credentials: the access key id has no secret key");
        }
        return std::make_shared<FixedCredentials>(profile.keys);
    }
    if (!options.profile.empty()) {
        return fail(ErrorCode::not_found, "S3 credentials: no profile \"" + options.profile +
                                              "\" with keys in the shared credentials and config files");
    }
    auto role = make_s3_role();
    if (role) return role;
    return fail(ErrorCode::permission_denied,
                "S3 credentials: none in the daemon's environment (AWS_ACCESS_KEY_ID), in ~/.aws/credentials or "
                "~/.aws/config, or from a role (" +
                    role.error().message + "); a public bucket needs --unsigned");
}

}  // namespace larder::cache
