#include "cache/remote/s3_credentials.h"

#include <boost/property_tree/ini_parser.hpp>
#include <boost/property_tree/ptree.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/environment.h"
#include "cache/remote/s3_role.h"

namespace larder::cache {
namespace {

namespace pt = boost::property_tree;

std::string first_non_empty(std::string a, std::string b) {
    return a.empty() ? std::move(b) : std::move(a);
}

std::string file_path(const char* variable, const char* name_in_home) {
    std::string given = environment(variable);
    if (!given.empty()) return given;
    const std::string home = environment("HOME");
    return home.empty() ? "" : home + "/.aws/" + name_in_home;
}

std::string_view trimmed(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(" \t\r");
    return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Returns the lines of one section; other lines are made empty, so that line numbers in errors stay right. Other
// sections must not be parsed. Indented lines are nested settings, which are not used.
std::string lines_of_section(std::istream& file, const std::string& section) {
    std::string section_lines;
    bool inside = false;
    bool seen = false;
    for (std::string line; std::getline(file, line); section_lines += '\n') {
        const std::string_view words = trimmed(line);
        if (words.starts_with('[')) {
            inside = words.ends_with(']') && trimmed(words.substr(1, words.size() - 2)) == section;
            if (inside && !std::exchange(seen, true)) section_lines += "[" + section + "]";
        } else if (inside && !line.empty() && line.front() != ' ' && line.front() != '\t') {
            section_lines += line;
        }
    }
    return section_lines;
}

// Returns the settings of the section; empty if the file or the section is missing.
Result<pt::ptree> read_section(const std::string& path, const std::string& section) {
    std::error_code ignored;
    if (path.empty() || !std::filesystem::exists(path, ignored)) return pt::ptree{};
    std::ifstream file(path);
    if (!file) return fail_errno(errno, "open " + path);
    pt::ptree tree;
    try {
        std::istringstream lines(lines_of_section(file, section));
        pt::read_ini(lines, tree);
    } catch (const pt::ini_parser_error& error) {
        // The message has the number of the line, never its text, which may be a secret.
        return fail(ErrorCode::invalid_argument,
                    path + ", line " + std::to_string(error.line()) + ": not a line of a profile");
    }
    const auto found = tree.find(section);
    return found == tree.not_found() ? pt::ptree{} : found->second;
}

S3Keys keys_of(const pt::ptree& section) {
    return {.access_key_id = section.get("aws_access_key_id", ""),
            .secret_access_key = section.get("aws_secret_access_key", ""),
            .session_token = section.get("aws_session_token", "")};
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
    const auto credentials = read_section(file_path("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name);
    if (!credentials) return std::unexpected(credentials.error());
    const auto config =
        read_section(file_path("AWS_CONFIG_FILE", "config"), name == "default" ? name : "profile " + name);
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
                                     config->get("region", ""));
    profile.endpoint =
        first_non_empty(first_non_empty(environment("AWS_ENDPOINT_URL_S3"), environment("AWS_ENDPOINT_URL")),
                        config->get("endpoint_url", ""));
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
