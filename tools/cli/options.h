#pragma once

// Command line values with units, checked while the line is parsed, so that a wrong one is a usage error.

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace larder::cli {

// "512 MiB"; the option's help names the form.
CLI::Option* add_bytes_option(CLI::App& app, const std::string& name, std::optional<std::uint64_t>& bytes,
                              const std::string& help);
// "200 MB/s", "1 Gbit"; 0 for none.
CLI::Option* add_rate_option(CLI::App& app, const std::string& name, std::optional<double>& bytes_per_second,
                             const std::string& help);

// A path is taken as a local directory, so that `larder dataset add images ./images` works.
std::string url_of(const std::string& text);

}  // namespace larder::cli
