#include "tools/cli/unit_options.h"

#include <CLI/CLI.hpp>

#include <filesystem>

#include "base/units.h"

namespace larder::cli {
namespace {

template <typename Value, typename Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, Value& target, const std::string& help,
                        const std::string& form, Parse parse) {
    const auto store = [&target, parse, name](const CLI::results_t& given) {
        const auto parsed = parse(given.back());
        if (!parsed) throw CLI::ValidationError(name, parsed.error().message);
        target = *parsed;
        return true;
    };
    return app.add_option(name, store, help)->type_name(form)->expected(1);
}

}  // namespace

CLI::Option* add_bytes_option(CLI::App& app, const std::string& name, std::optional<std::uint64_t>& bytes,
                              const std::string& help) {
    return add_parsed(app, name, bytes, help, "SIZE", [](const std::string& text) { return parse_bytes(text); });
}

CLI::Option* add_rate_option(CLI::App& app, const std::string& name, std::optional<double>& bytes_per_second,
                             const std::string& help) {
    return add_parsed(app, name, bytes_per_second, help, "RATE",
                      [](const std::string& text) { return parse_bytes_per_second(text); });
}

std::string url_of(const std::string& text) {
    if (text.find("://") != std::string::npos) return text;
    std::error_code ignored;
    const auto absolute = std::filesystem::weakly_canonical(std::filesystem::absolute(text, ignored), ignored);
    return "file://" + (ignored ? text : absolute.string());
}

}  // namespace larder::cli
