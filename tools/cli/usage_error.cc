#include "tools/cli/usage_error.h"

#include <CLI/CLI.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "base/nearest_name.h"
#include "base/server/http.h"
#include "tools/cli/context.h"

namespace larder::cli {
namespace {

// Words that other programs use, and Larder's word for the same.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kOtherWords{{{"create", "add"},
                                                                                     {"new", "add"},
                                                                                     {"delete", "rm"},
                                                                                     {"del", "rm"},
                                                                                     {"start", "up"},
                                                                                     {"stop", "down"},
                                                                                     {"stop", "cancel"},
                                                                                     {"kill", "cancel"},
                                                                                     {"queue", "jobs"},
                                                                                     {"describe", "info"}}};

struct Command {
    const CLI::App* app;
    std::string line;  // as it is typed: "larder dataset add"
};

// Returns the subcommands. CLI11's option groups are Apps too, without a name.
std::vector<const CLI::App*> commands_of(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App* child) { return !child->get_name().empty(); });
}

// Returns the command that was being read when the parse ended.
Command innermost(const CLI::App& app) {
    Command command{&app, app.get_name()};
    while (!command.app->get_subcommands().empty()) {
        command.app = command.app->get_subcommands().back();
        command.line += " " + command.app->get_name();
    }
    return command;
}

std::optional<std::string> nearest_command(const CLI::App& app, const std::string& word) {
    std::vector<std::string> names;
    for (const CLI::App* child : commands_of(app)) {
        names.push_back(child->get_name());
        for (const std::string& alias : child->get_aliases()) names.push_back(alias);
    }
    return nearest_name(word, names);
}

void find_named(const Command& parent, const std::string& word, std::vector<std::string>& lines) {
    for (const CLI::App* child : commands_of(*parent.app)) {
        const Command command{child, parent.line + " " + child->get_name()};
        if (child->check_name(word)) lines.push_back("`" + command.line + "`");
        find_named(command, word, lines);
    }
}

std::string join(const std::vector<std::string>& parts, std::string_view last) {
    std::string text;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (i > 0) text += i + 1 < parts.size() ? std::string(", ") : std::string(last);
        text += parts[i];
    }
    return text;
}

std::string see_help(const std::string& line) {
    return "see `" + line + " --help`";
}

std::string names_text(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* child : commands_of(app)) names.push_back(child->get_name());
    return join(names, ", ");
}

std::string unknown_command(const CLI::App& root, const Command& typed, const std::string& word) {
    std::vector<std::string> known{word};
    for (const auto& [other, ours] : kOtherWords) {
        if (word == other) known.emplace_back(ours);
    }
    const auto find_known = [&known](const Command& below, std::vector<std::string>& found) {
        for (const std::string& name : known) find_named(below, name, found);
    };
    std::vector<std::string> suggestions;
    find_known(typed, suggestions);
    if (suggestions.empty()) {
        if (const auto nearest = nearest_command(*typed.app, word))
            suggestions.push_back("`" + typed.line + " " + *nearest + "`");
    }
    if (suggestions.empty()) find_known({&root, root.get_name()}, suggestions);
    const std::string what = typed.line + ": unknown command \"" + word + "\"; ";
    if (!suggestions.empty()) return what + "did you mean " + join(suggestions, " or ") + "?";
    return what + "there are " + names_text(*typed.app) + "; " + see_help(typed.line);
}

// Returns the first value of the command's arguments that names no option, or "".
std::string first_argument(const CLI::App& app) {
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_positional() && option->count() > 0) return option->results().front();
    }
    return "";
}

// Returns what a command says that takes an argument or a command, such as `larder simulate`.
std::string argument_or_command(const Command& typed) {
    std::string argument;
    for (const CLI::Option* option : typed.app->get_options()) {
        if (option->get_positional()) argument = option->get_name();
    }
    return typed.line + ": give a " + argument + ", or one of " + names_text(*typed.app) + "; " + see_help(typed.line);
}

std::string unknown_option(const CLI::App& root, const Command& typed, const std::string& word) {
    const std::string given = word.substr(0, word.find('='));
    std::vector<std::string> names;
    for (const CLI::App* app : {typed.app, &root}) {
        for (const CLI::Option* option : app->get_options()) {
            for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
        }
    }
    const auto nearest = nearest_name(given, names);
    return typed.line + ": unknown option " + given + "; " +
           (nearest ? "did you mean " + *nearest + "?" : see_help(typed.line));
}

// Returns the text before and after `mark`; nothing if `text` does not contain it.
std::optional<std::pair<std::string, std::string>> split_at(const std::string& text, std::string_view mark) {
    const std::size_t at = text.find(mark);
    if (at == std::string::npos) return std::nullopt;
    return std::pair(text.substr(0, at), text.substr(at + mark.size()));
}

// "a,b,c" of CLI11's "x not in {a,b,c}".
std::vector<std::string> listed_names(const std::string& text) {
    std::vector<std::string> names;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t end = std::min(text.find(',', at), text.size());
        names.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return names;
}

// CLI11 prints a limit that is a double with six decimals: "0.100000".
std::string without_trailing_zeros(std::string number) {
    if (number.find('.') == std::string::npos) return number;
    number.erase(number.find_last_not_of('0') + 1);
    if (number.ends_with('.')) number.pop_back();
    return number;
}

// CLI11 has no hook for most of its messages: the sentences of CLI11 2.1 are recognised here and worded again. A
// sentence that is not recognised is shown as it is.
std::string in_plain_words(std::string what) {
    if (what.ends_with(" missing") && what.find(" required ") != std::string::npos) {
        return what.substr(0, what.find(':')) + ": a value is missing";
    }
    if (const auto group = split_at(what, "At least 1 option from ["); group && group->first.empty()) {
        const std::vector<std::string> names = listed_names(group->second.substr(0, group->second.find(']')));
        return "at least one of " + join(names, ", ") + " is required";
    }
    if (what.ends_with(" was given a disallowed flag override")) {
        return what.substr(0, what.find(' ')) + " takes no value";
    }
    if (const auto failed = split_at(what, "Could not convert: ")) {
        if (const auto parts = split_at(failed->second, " = ")) {
            return parts->first + ": \"" + parts->second + "\" is not a number, or too large";
        }
    }
    if (const auto chosen = split_at(what, " not in {"); chosen && chosen->second.ends_with('}')) {
        const auto parts = split_at(chosen->first, ": ");
        const std::string value = parts ? parts->second : chosen->first;
        const std::vector<std::string> names = listed_names(chosen->second.substr(0, chosen->second.size() - 1));
        const auto nearest = nearest_name(value, names);
        return (parts ? parts->first + ": " : "") + "\"" + value + "\" is not one of " + join(names, ", ") +
               (nearest ? "; did you mean " + *nearest + "?" : "");
    }
    if (const auto range = split_at(what, " not in range ")) {
        const auto value = split_at(range->first, "Value ");
        const auto limits = split_at(range->second, " to ");
        // The range of CLI::PositiveNumber ends at the largest number there is.
        const bool is_above_0 = limits && limits->second.size() > 20 && std::atof(limits->first.c_str()) < 1e-9;
        if (value && is_above_0) return value->first + "\"" + value->second + "\" is not a number above 0";
        if (value && limits) {
            return value->first + "\"" + value->second + "\" is not a number from " +
                   without_trailing_zeros(limits->first) + " to " + without_trailing_zeros(limits->second);
        }
    }
    return what;
}

}  // namespace

std::string usage_error_text(const CLI::App& app, const CLI::ParseError& error) {
    const Command typed = innermost(app);
    const std::vector<std::string> left = app.remaining(true);
    const bool takes_command = !commands_of(*typed.app).empty();
    const bool needs_command = takes_command && typed.app->get_require_subcommand_min() > 0;
    const bool is_incomplete = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    const bool lacks_command = needs_command && is_incomplete;
    // Other errors end the parse before the later words are read.
    const bool has_extras =
        !left.empty() && (lacks_command || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr);
    if (has_extras && left.front().starts_with('-')) return unknown_option(app, typed, left.front());
    if (has_extras && needs_command) return unknown_command(app, typed, left.front());
    if (takes_command && !needs_command && dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr &&
        is_misspelt_command(*typed.app, first_argument(*typed.app)))
        return unknown_command(app, typed, first_argument(*typed.app));
    if (has_extras) return typed.line + ": unexpected argument \"" + left.front() + "\"; " + see_help(typed.line);
    if (lacks_command) {
        return typed.line + ": which command? There are " + names_text(*typed.app) + "; " + see_help(typed.line);
    }
    if (takes_command && is_incomplete) return argument_or_command(typed);
    std::string what = error.what();
    const std::string command = typed.app->get_name() + ": ";
    if (what.starts_with(command)) what.erase(0, command.size());
    return typed.line + ": " + in_plain_words(std::move(what)) + "; " + see_help(typed.line);
}

bool is_misspelt_command(const CLI::App& app, const std::string& argument) {
    return argument.find_first_of("/.:") == std::string::npos && nearest_command(app, argument);
}

int end_parse(const CLI::App& app, const CLI::ParseError& error, bool json) {
    // CLI11 reports help and version as errors with exit code 0.
    if (error.get_exit_code() == 0) return app.exit(error), kDone;
    const Error usage_error{ErrorCode::invalid_argument, usage_error_text(app, error)};
    std::fprintf(stderr, "%s\n", usage_error.message.c_str());
    if (json) std::fputs(http_error(usage_error).body.c_str(), stdout);
    return kUsage;
}

bool asks_for_json(std::span<char* const> arguments) {
    for (const std::string_view argument : arguments) {
        if (argument == "--") return false;
        if (argument == "--json") return true;
    }
    return false;
}

}  // namespace larder::cli
