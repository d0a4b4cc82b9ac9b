#include "cache/remote/profile_section.h"

#include <boost/property_tree/ini_parser.hpp>
#include <boost/property_tree/ptree.hpp>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

namespace larder::cache {
namespace {

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

}  // namespace

Result<ProfileSection> read_profile_section(const std::string& path, const std::string& section) {
    std::error_code ignored;
    if (path.empty() || !std::filesystem::exists(path, ignored)) return ProfileSection{};
    std::ifstream file(path);
    if (!file) return fail_errno(errno, "open " + path);
    boost::property_tree::ptree tree;
    try {
        std::istringstream lines(lines_of_section(file, section));
        boost::property_tree::read_ini(lines, tree);
    } catch (const boost::property_tree::ini_parser_error& error) {
        // The message has the number of the line, never its text, which may be a secret.
        return fail(ErrorCode::invalid_argument,
                    path + ", line " + std::to_string(error.line()) + ": not a line of a profile");
    }
    ProfileSection settings;
    const auto found = tree.find(section);
    if (found == tree.not_found()) return settings;
    for (const auto& [name, value] : found->second) settings.emplace(name, value.data());
    return settings;
}

std::string section_value(const ProfileSection& section, const std::string& name) {
    const auto found = section.find(name);
    return found == section.end() ? "" : found->second;
}

}  // namespace larder::cache
