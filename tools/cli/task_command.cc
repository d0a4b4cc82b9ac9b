#include "tools/cli/task_command.h"

#include <cstdio>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/table.h"

namespace larder::cli {

namespace json = boost::json;

namespace {

// Prints the result's fields on one line, then its notes.
void print_result(const std::string& what, const json::object& task) {
    std::string line = what + " in " + format_seconds(number_at(task, "seconds"));
    const json::object& result = object_at(task, "result");
    const auto is_size = [](std::string_view key) { return key.find("bytes") != std::string_view::npos; };
    std::vector<std::uint64_t> sizes_bytes;
    for (const auto& [key, value] : result) {
        if (is_size(key)) sizes_bytes.push_back(count_at(result, key));
    }
    const UnitFamily family = common_unit_family(sizes_bytes);
    for (const auto& [key, value] : result) {
        if (value.is_array() || value.is_object()) continue;
        // A new dataset has nothing from an earlier version or run.
        const bool counts_earlier_work = key.ends_with("carried_over") || key.ends_with("resumed");
        if (counts_earlier_work && count_at(result, key) == 0) continue;
        std::string name(key);
        for (char& letter : name) letter = letter == '_' ? ' ' : letter;
        line += ", " + name + " " +
                (is_size(key)        ? format_bytes(count_at(result, key), family)
                 : value.is_number() ? format_count(count_at(result, key))
                                     : text_at(result, key));
    }
    std::printf("%s\n", line.c_str());
    print_notes(result);
}

}  // namespace

void print_notes(const json::object& result) {
    for (const json::value& note : array_at(result, "notes")) {
        if (note.is_string()) std::printf("note: %s\n", note.get_string().c_str());
    }
}

int report_task(const Context& context, const Error& error) {
    const int code = report(context, error);
    // The daemon answers, so the unreachable side is the remote.
    return code == kUnreachable ? static_cast<int>(kRemoteAway) : code;
}

int run_task(const Context& context, const std::string& method, const std::string& target, const json::value& body,
             const std::string& label, const std::string& past, int (*judge)(const json::object& result)) {
    const auto accepted = call(context, method, target, body);
    if (!accepted) return report(context, accepted.error());
    const auto ended = follow_task(context, *accepted, label);
    if (!ended) return report(context, ended.error());
    if (ended->error) return report_task(context, *ended->error);
    if (context.json) {
        print_json(ended->task);
    } else {
        print_result(past, as_object(ended->task));
    }
    return judge != nullptr ? judge(object_at(as_object(ended->task), "result")) : static_cast<int>(kDone);
}

}  // namespace larder::cli
