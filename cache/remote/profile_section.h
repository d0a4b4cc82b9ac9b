#pragma once

// One section of a file of profiles, as the clients of clouds keep them (~/.aws/credentials, ~/.azure/config).

#include <map>
#include <string>

#include "base/error.h"

namespace larder::cache {

using ProfileSection = std::map<std::string, std::string>;

// Returns the settings of a section; empty if the file or the section is missing, or `path` is empty. Errors never
// quote the file, because a line may hold a secret.
Result<ProfileSection> read_profile_section(const std::string& path, const std::string& section);
// Returns the value of a setting; empty if it is not set.
std::string section_value(const ProfileSection& section, const std::string& name);

}  // namespace larder::cache
