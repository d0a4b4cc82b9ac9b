#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>

#include <cstdio>
#include <memory>

#include "base/server/http_client.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/completion.h"
#include "tools/cli/context.h"
#include "tools/cli/describe_program.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

// A shell waits for the answer at each Tab.
constexpr std::int64_t kNamesTimeout_ms = 1'000;

int print_script(const Context& context, const std::string& shell) {
    const auto script = completion_script(shell);
    if (!script) return report(context, script.error());
    std::fputs(script->c_str(), stdout);
    return kDone;
}

// Returns the values of `key` in the list that the daemon has of a kind; empty if no daemon answers.
std::vector<std::string> names_at(const std::string& socket, const char* list, const char* key) {
    HttpClientOptions options;
    options.timeout_ms = kNamesTimeout_ms;
    HttpClient client(socket);
    const auto response = client.request("GET", std::string("/v1/") + list, "", options);
    if (!response || response->status >= 400) return {};
    json::error_code failure;
    const json::value answer = json::parse(response->body, failure);
    std::vector<std::string> names;
    for (const json::value& item : array_at(as_object(answer), list)) names.push_back(text_at(as_object(item), key));
    return names;
}

}  // namespace

NamesOfKind names_of_daemon(const Context& context) {
    return [&context](NameKind kind) -> std::vector<std::string> {
        switch (kind) {
            case NameKind::dataset: return names_at(context.admin_socket, "datasets", "name");
            case NameKind::job: return names_at(context.admin_socket, "jobs", "job");
            case NameKind::none: break;
        }
        return {};
    };
}

void add_shell_commands(CLI::App& app, Context& context,
                        const std::function<int(const std::vector<std::string>&)>& man) {
    auto shell = std::make_shared<std::string>();
    CLI::App* completion = app.add_subcommand(
        "completion", "Print the script that completes command lines in a shell: source <(larder completion bash)");
    completion->add_option("SHELL", *shell, "The shell")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
    completion->callback(
        [&context, shell] { context.command = [&context, shell] { return print_script(context, *shell); }; });
    auto words = std::make_shared<std::vector<std::string>>();
    CLI::App* manual = app.add_subcommand("man", "Print the man page of a command: larder man dataset add | man -l -");
    manual->add_option("COMMAND", *words, "The command, such as dataset add. Default: larder itself");
    manual->callback([&context, words, man] { context.command = [words, man] { return man(*words); }; });
}

}  // namespace larder::cli
