#include "tools/cli/command_tree.h"

#include <CLI/CLI.hpp>

#include <string_view>

namespace larder::cli {
namespace {

// Splits CLI11's "TEXT:{auto,path}" or "FLOAT:FLOAT in [0 - 1]" into the value's name and what is allowed.
void take_type(const std::string& type, OptionText& option) {
    const std::size_t colon = type.find(':');
    option.value = type.substr(0, colon);
    if (colon == std::string::npos) return;
    std::string_view allowed = std::string_view(type).substr(colon + 1);
    if (!allowed.starts_with('{') || !allowed.ends_with('}')) {
        option.range = allowed;
        return;
    }
    allowed = allowed.substr(1, allowed.size() - 2);
    while (!allowed.empty()) {
        const std::size_t comma = allowed.find(',');
        option.choices.emplace_back(allowed.substr(0, comma));
        allowed.remove_prefix(comma == std::string_view::npos ? allowed.size() : comma + 1);
    }
}

OptionText option_text(const CLI::Option& option) {
    OptionText text{.positional = option.get_positional() ? option.get_name(true, false) : std::string(),
                    .help = option.get_description(),
                    .group = option.get_group(),
                    .required = option.get_required(),
                    .repeats = option.get_items_expected_max() > 1};
    for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
    if (option.get_type_size() != 0) take_type(option.get_type_name(), text);
    return text;
}

// Options of CLI11's option groups, which are Apps without a name, belong to the command.
void add_options(const CLI::App& app, CommandText& command) {
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_group().empty()) continue;  // hidden
        OptionText text = option_text(*option);
        (text.names.empty() ? command.positionals : command.options).push_back(std::move(text));
    }
    for (const CLI::App* group : app.get_subcommands([](const CLI::App* child) { return child->get_name().empty(); })) {
        add_options(*group, command);
    }
}

}  // namespace

CommandText command_text(const CLI::App& app, const std::string& line) {
    std::string help = app.get_description();
    if (help.starts_with(line + ": ")) help.erase(0, line.size() + 2);
    CommandText command{.line = line,
                        .name = line.substr(line.rfind(' ') + 1),
                        .aliases = app.get_aliases(),
                        .help = help,
                        .footer = app.get_footer(),
                        .has_parents_options = app.get_fallthrough()};
    add_options(app, command);
    for (const CLI::App* child :
         app.get_subcommands([](const CLI::App* other) { return !other->get_name().empty(); })) {
        if (child->get_group().empty()) continue;  // hidden
        command.commands.push_back(command_text(*child, line + " " + child->get_name()));
    }
    return command;
}

}  // namespace larder::cli
