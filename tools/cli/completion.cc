#include "tools/cli/completion.h"

#include <algorithm>
#include <array>
#include <utility>

namespace larder::cli {
namespace {

// The programs that understand __complete.
constexpr std::string_view kPrograms = "larder larderd larder-allocator larder-slurm";

// %PROGRAMS% is replaced. `$1` is the program as typed.
constexpr std::string_view kBash =
    R"(# Completion of %PROGRAMS% for bash; the package bash-completion must be installed.
_larder() {
    local cur prev words=() cword line word files= prefix=
    _get_comp_words_by_ref -n =: cur prev words cword || return
    while IFS= read -r line; do
        if [ "$line" = :files ]; then files=1; else COMPREPLY+=("${line%%$'\t'*}"); fi
    done < <("${words[0]}" __complete "${words[@]:1:cword}" 2>/dev/null)
    # Readline replaces only what follows the last = or :.
    if [[ $cur == *=* && $COMP_WORDBREAKS == *=* ]]; then
        prefix=${cur%"${cur##*=}"}
        COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
        cur=${cur#"$prefix"}
    fi
    if [ -n "$files" ]; then
        compopt -o filenames
        while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$cur")
    fi
    __ltrim_colon_completions "$cur"
}
complete -F _larder %PROGRAMS%
)";
constexpr std::string_view kZsh = R"(#compdef %PROGRAMS%
_larder() {
    local line word files=
    local -a candidates
    for line in "${(@f)$("${(Q)words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        if [[ $line == :files ]]; then
            files=1
        elif [[ -n $line ]]; then
            word=${line%%$'\t'*}
            candidates+=("${word//:/\\:}:${line#*$'\t'}")
        fi
    done
    (( $#candidates )) && _describe larder candidates
    if [[ -n $files ]]; then
        [[ $PREFIX == --*=* ]] && compset -P '*='
        _files
    fi
}
if [ "$funcstack[1]" = _larder ]; then _larder "$@"; else compdef _larder %PROGRAMS%; fi
)";
constexpr std::string_view kFish = R"(# Completion of %PROGRAMS% for fish.
function __larder_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
        if test "$line" = :files
            if string match -qr -- '^--[^=]*=' "$current"
                set -l option (string match -r -- '^--[^=]*=' "$current")
                for path in (__fish_complete_path (string replace -- $option '' "$current"))
                    echo $option$path
                end
            else
                __fish_complete_path "$current"
            end
        else
            echo $line
        end
    end
end
for program in %PROGRAMS%
    complete -c $program -f -a '(__larder_complete)'
end
)";

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kScripts{
    {{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}}};

// Values of these types are no names of files.
constexpr std::array<std::string_view, 6> kNumbers{"SIZE", "RATE", "INT", "UINT", "FLOAT", "ENDPOINT"};

NameKind kind_of(const CommandText& command, const OptionText& option) {
    const std::string_view line = command.line;
    if (std::ranges::find(option.names, "--dataset") != option.names.end()) return NameKind::dataset;
    if (line == "larder doctor" && option.positional == "REMOTE") return NameKind::dataset;
    if ((line == "larder job limit" || line == "larder trace") && option.positional == "JOB") return NameKind::job;
    if ((line == "larder quota pin" || line == "larder cat") && option.positional == "DATASET")
        return NameKind::dataset;
    const bool has_dataset =
        (line.starts_with("larder dataset ") && line != "larder dataset add") || line.starts_with("larder quota ");
    return has_dataset && option.positional == "NAME" ? NameKind::dataset : NameKind::none;
}

class Completer {
public:
    Completer(const CommandText& program, const NamesOfKind& names) : command_(&program), names_(names) {
        parents_.push_back(command_);
    }

    Candidates run(std::span<const std::string> words) {
        if (words.empty()) return {};
        for (const std::string& word : words.first(words.size() - 1)) take(word);
        return offer(words.back());
    }

private:
    // Moves past a word that is complete.
    void take(const std::string& word) {
        if (awaits_value_ != nullptr) {
            awaits_value_ = nullptr;
        } else if (only_positionals_) {
            ++positionals_;
        } else if (word == "--") {
            only_positionals_ = true;
        } else if (word.starts_with('-') && word.size() > 1) {
            const OptionText* option = find_option(word.substr(0, word.find('=')));
            if (option == nullptr) return;
            used_.push_back(option);
            if (!option->value.empty() && word.find('=') == std::string::npos) awaits_value_ = option;
        } else if (const CommandText* child = find_command(word)) {
            command_ = child;
            parents_.push_back(child);
            positionals_ = 0;
        } else {
            ++positionals_;
        }
    }

    Candidates offer(const std::string& word) {
        Candidates found;
        if (awaits_value_ != nullptr) {
            offer_value(*awaits_value_, "", word, found);
        } else if (const std::size_t equals = word.find('=');
                   !only_positionals_ && word.starts_with("--") && equals != std::string::npos) {
            const OptionText* option = find_option(word.substr(0, equals));
            if (option != nullptr) offer_value(*option, word.substr(0, equals + 1), word, found);
        } else if (!only_positionals_ && word.starts_with('-')) {
            offer_options(word, found);
        } else {
            if (positionals_ == 0) {
                for (const CommandText& child : command_->commands) add(child.name, child.help, word, found);
            }
            if (const OptionText* positional = positional_at(positionals_)) offer_value(*positional, "", word, found);
        }
        return found;
    }

    void offer_options(const std::string& word, Candidates& found) const {
        for_each_option([&](const OptionText& option) {
            if (!option.repeats && std::ranges::find(used_, &option) != used_.end()) return false;
            for (const std::string& name : option.names) add(name, option.help, word, found);
            return false;
        });
    }

    void offer_value(const OptionText& option, const std::string& before, const std::string& word,
                     Candidates& found) const {
        for (const std::string& choice : option.choices) add(before + choice, "", word, found);
        if (!option.choices.empty()) return;
        const NameKind kind = kind_of(*command_, option);
        if (kind != NameKind::none) {
            for (const std::string& name : names_(kind)) add(before + name, "", word, found);
            found.files = option.positional == "REMOTE";
            return;
        }
        found.files = std::ranges::find(kNumbers, option.value) == kNumbers.end();
    }

    static void add(const std::string& candidate, const std::string& help, const std::string& word, Candidates& found) {
        if (candidate.starts_with(word)) found.words.push_back({candidate, help});
    }

    // Calls `visit` with the options of the command, and of its parents where these may stand behind it, until it
    // returns true.
    template <typename Visit>
    void for_each_option(const Visit& visit) const {
        for (auto command = parents_.rbegin(); command != parents_.rend(); ++command) {
            for (const OptionText& option : (*command)->options) {
                if (visit(option)) return;
            }
            if (!(*command)->has_parents_options) return;
        }
    }

    const OptionText* find_option(const std::string& name) const {
        const OptionText* found = nullptr;
        for_each_option([&](const OptionText& option) {
            if (std::ranges::find(option.names, name) == option.names.end()) return false;
            found = &option;
            return true;
        });
        return found;
    }

    const CommandText* find_command(const std::string& word) const {
        if (positionals_ > 0) return nullptr;
        const auto found = std::ranges::find_if(command_->commands, [&](const CommandText& child) {
            return child.name == word || std::ranges::find(child.aliases, word) != child.aliases.end();
        });
        return found == command_->commands.end() ? nullptr : &*found;
    }

    const OptionText* positional_at(std::size_t index) const {
        if (index < command_->positionals.size()) return &command_->positionals[index];
        const bool last_repeats = !command_->positionals.empty() && command_->positionals.back().repeats;
        return last_repeats ? &command_->positionals.back() : nullptr;
    }

    const CommandText* command_;
    const NamesOfKind& names_;
    std::vector<const CommandText*> parents_;  // from the program to `command_`
    std::vector<const OptionText*> used_;
    const OptionText* awaits_value_ = nullptr;
    std::size_t positionals_ = 0;
    bool only_positionals_ = false;
};

}  // namespace

Candidates complete(const CommandText& program, std::span<const std::string> words, const NamesOfKind& names) {
    return Completer(program, names).run(words);
}

std::string text_of(const Candidates& candidates) {
    std::string text;
    for (const Candidate& candidate : candidates.words) {
        // A line break would end the candidate.
        std::string help = candidate.help.substr(0, candidate.help.find('\n'));
        text += candidate.word + "\t" + help + "\n";
    }
    if (candidates.files) text += ":files\n";
    return text;
}

Result<std::string> completion_script(std::string_view shell) {
    for (const auto& [name, script] : kScripts) {
        if (name != shell) continue;
        std::string text(script);
        constexpr std::string_view kPlace = "%PROGRAMS%";
        for (std::size_t at = 0; (at = text.find(kPlace, at)) != std::string::npos;) {
            text.replace(at, kPlace.size(), kPrograms);
        }
        return text;
    }
    return fail(ErrorCode::invalid_argument, "no completion for \"" + std::string(shell) + "\": bash, zsh or fish");
}

}  // namespace larder::cli
