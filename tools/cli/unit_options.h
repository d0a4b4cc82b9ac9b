#pragma once

// Command line values with units. They are checked while the line is parsed, so that a wrong value is a usage error.

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace larder::cli {

// Adds an option for a size, "512 MiB"; the option's help names the form.
CLI::Option* add_bytes_option(CLI::App& app, const std::string& name, std::optional<std::uint64_t>& bytes,
                              const std::string& help);
// Adds an option for a rate, "200 MB/s" or "1 Gbit"; 0 for none.
CLI::Option* add_rate_option(CLI::App& app, const std::string& name, std::optional<double>& bytes_per_second,
                             const std::string& help);

// Returns a URL; a path becomes a local directory's URL, so that `larder dataset add images ./images` works.
std::string url_of(const std::string& text);

}  // namespace larder::cli
