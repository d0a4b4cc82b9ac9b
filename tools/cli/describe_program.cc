#include "tools/cli/describe_program.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <vector>

#include "base/file.h"
#include "tools/cli/command_tree.h"
#include "tools/cli/context.h"
#include "tools/cli/manual.h"

namespace larder::cli {
namespace {

int refuse(const CommandText& program, const Error& error) {
    std::fprintf(stderr, "%s: %s\n", program.line.c_str(), error.message.c_str());
    return error.code == ErrorCode::invalid_argument ? kUsage : kFailed;
}

int print_candidates(const CommandText& program, const NamesOfKind& names, const std::vector<std::string>& words) {
    const NamesOfKind none = [](NameKind) { return std::vector<std::string>(); };
    std::fputs(text_of(complete(program, words, names ? names : none)).c_str(), stdout);
    return kDone;
}

int print_page(const CommandText& program, int section, const std::vector<std::string>& words) {
    const auto command = find_command(program, words);
    if (!command) return refuse(program, command.error());
    std::fputs(manual_page(**command, program, section).text.c_str(), stdout);
    return kDone;
}

int write_pages(const CommandText& program, int section, std::vector<std::string> words) {
    if (words.empty()) return refuse(program, {ErrorCode::invalid_argument, "__man-pages needs a directory", 0});
    const std::string directory = words.front();
    words.erase(words.begin());
    const auto command = find_command(program, words);
    if (!command) return refuse(program, command.error());
    for (const ManualPage& page : manual_pages(**command, program, section)) {
        const auto written = replace_file_unsynced(directory + "/" + page.name, page.text);
        if (!written) return refuse(program, written.error());
    }
    return kDone;
}

}  // namespace

std::optional<int> describe_program(const CLI::App& app, const ProgramDescription& description, int argc, char** argv) {
    if (argc < 2) return std::nullopt;
    const std::string_view asked = argv[1];
    const std::vector<std::string> words(argv + 2, argv + argc);
    if (asked != kCompleteWord && asked != kManWord && asked != kManPagesWord) return std::nullopt;
    const CommandText program = command_text(app, description.line);
    if (asked == kCompleteWord) return print_candidates(program, description.names, words);
    if (asked == kManWord) return print_page(program, description.man_section, words);
    return write_pages(program, description.man_section, words);
}

}  // namespace larder::cli
