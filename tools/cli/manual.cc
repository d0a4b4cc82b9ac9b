#include "tools/cli/manual.h"

#include <algorithm>
#include <string_view>

namespace larder::cli {
namespace {

// Escapes what roff would read as a request or a special character. A - is typed by users, so it stays an ASCII one.
std::string roff(std::string_view text) {
    std::string escaped;
    escaped.reserve(text.size() + 16);
    bool line_begins = true;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char letter = text[at];
        if (line_begins && (letter == '.' || letter == '\'')) escaped += "\\&";
        line_begins = letter == '\n';
        switch (letter) {
            case '\\': escaped += "\\e"; break;
            case '-': escaped += "\\-"; break;
            case '\'': escaped += "\\(aq"; break;
            case '`': escaped += "\\(ga"; break;
            case '^': escaped += "\\(ha"; break;
            case '~': escaped += "\\(ti"; break;
            // A long run of options in brackets may break between two.
            case ']': escaped += text.substr(at).starts_with("][") ? "]\\:" : "]"; break;
            default: escaped += letter;
        }
    }
    return escaped;
}

std::string bold(std::string_view text) {
    return "\\fB" + roff(text) + "\\fR";
}

std::string italic(std::string_view text) {
    return "\\fI" + roff(text) + "\\fR";
}

std::string page_name(const std::string& line) {
    std::string name = line;
    std::ranges::replace(name, ' ', '-');
    return name;
}

std::string reference(const std::string& line, int section) {
    return bold(page_name(line)) + "(" + std::to_string(section) + ")";
}

// The name of a page says in a few words what the command does: the help up to its first stop.
std::string short_help(const std::string& help) {
    return help.substr(0, std::min({help.find(": "), help.find("; "), help.find(". "), help.find('\n')}));
}

std::string paragraph(const std::string& text) {
    std::string sentence = roff(text);
    if (!sentence.empty() && !std::string_view(".?!").contains(sentence.back())) sentence += '.';
    return sentence + "\n";
}

std::string shown_value(const OptionText& option) {
    std::string text;
    if (!option.choices.empty()) {
        for (const std::string& choice : option.choices) text += (text.empty() ? "" : "|\\:") + bold(choice);
    } else {
        text = italic(option.value);
    }
    return option.repeats ? text + " ..." : text;
}

std::string option_entry(const OptionText& option) {
    std::string heading;
    for (const std::string& name : option.names) heading += (heading.empty() ? "" : ", ") + bold(name);
    if (option.names.empty())
        heading = italic(option.positional);
    else if (!option.value.empty())
        heading += " " + shown_value(option);
    std::string help = option.help;
    if (option.required && !option.names.empty()) help += (help.ends_with('.') ? " " : ". ") + std::string("Required");
    return ".TP\n" + heading + "\n" + paragraph(help);
}

std::string synopsis(const CommandText& command) {
    std::string text = bold(command.line);
    if (!command.options.empty()) text += " [" + italic("OPTIONS") + "]";
    for (const OptionText& positional : command.positionals) {
        const std::string name = italic(positional.positional) + (positional.repeats ? " ..." : "");
        text += positional.required ? " " + name : " [" + name + "]";
    }
    if (!command.commands.empty()) {
        text += command.positionals.empty() ? " " + italic("COMMAND") : " [" + italic("COMMAND") + "]";
    }
    return text + "\n";
}

std::string options_text(const CommandText& command) {
    std::string text;
    std::vector<std::string> groups;
    for (const OptionText& option : command.options) {
        if (std::ranges::find(groups, option.group) == groups.end()) groups.push_back(option.group);
    }
    for (const std::string& group : groups) {
        const bool usual = group == "Options" || group == "Option Group";
        text += usual ? ".SH OPTIONS\n" : ".SH " + roff(group) + "\n";
        for (const OptionText& option : command.options) {
            if (option.group == group) text += option_entry(option);
        }
    }
    return text;
}

}  // namespace

ManualPage manual_page(const CommandText& command, const CommandText& program, int section) {
    const std::string name = page_name(command.line);
    std::string title = name;
    std::ranges::transform(title, title.begin(),
                           [](char letter) { return letter >= 'a' && letter <= 'z' ? char(letter - 32) : letter; });
    std::string text = ".TH " + roff(title) + " " + std::to_string(section) +
                       " \"\" \"Larder " LARDER_VERSION "\" \"Larder\"\n.ad l\n.nh\n.SH NAME\n" + roff(name) + " \\- " +
                       roff(short_help(command.help)) + "\n.SH SYNOPSIS\n" + synopsis(command) + ".SH DESCRIPTION\n" +
                       paragraph(command.help);
    if (!command.aliases.empty()) {
        text += ".PP\nAlso:";
        for (const std::string& alias : command.aliases) text += " " + bold(alias);
        text += "\n";
    }
    if (!command.commands.empty()) {
        text += ".SH COMMANDS\n";
        for (const CommandText& child : command.commands) {
            text += ".TP\n" + reference(child.line, section) + "\n" + paragraph(child.help);
        }
    }
    if (!command.positionals.empty()) {
        text += ".SH ARGUMENTS\n";
        for (const OptionText& positional : command.positionals) text += option_entry(positional);
    }
    text += options_text(command);
    if (&command != &program && command.has_parents_options) {
        text += ".PP\nThe options of " + reference(program.line, section) + " may stand here, too.\n";
    }
    const std::string& footer = command.footer.empty() ? program.footer : command.footer;
    if (!footer.empty()) text += ".SH NOTES\n" + paragraph(footer);
    if (&command != &program) {
        text += ".SH SEE ALSO\n" + reference(command.line.substr(0, command.line.rfind(' ')), section) + "\n";
    }
    return {.name = name + "." + std::to_string(section), .text = std::move(text)};
}

std::vector<ManualPage> manual_pages(const CommandText& command, const CommandText& program, int section) {
    std::vector<ManualPage> pages{manual_page(command, program, section)};
    for (const CommandText& child : command.commands) {
        for (ManualPage& page : manual_pages(child, program, section)) pages.push_back(std::move(page));
    }
    return pages;
}

Result<const CommandText*> find_command(const CommandText& program, const std::vector<std::string>& words) {
    const CommandText* command = &program;
    for (const std::string& word : words) {
        const auto child = std::ranges::find_if(command->commands, [&](const CommandText& other) {
            return other.name == word || std::ranges::find(other.aliases, word) != other.aliases.end();
        });
        if (child == command->commands.end()) {
            return fail(ErrorCode::invalid_argument,
                        "there is no command `" + command->line + " " + word + "`; see `" + command->line + " --help`");
        }
        command = &*child;
    }
    return command;
}

}  // namespace larder::cli
