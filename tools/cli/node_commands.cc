#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdio>
#include <memory>

#include "base/server/http.h"
#include "base/server/percent_encoding.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/table.h"
#include "tools/cli/when.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

int list_nodes(const Context& context) {
    const auto answer = call_allocator(context, "GET", "/v1/nodes");
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
    } else {
        std::fputs(nodes_text(array_at(as_object(*answer), "nodes"), std::string::npos).c_str(), stdout);
    }
    return kDone;
}

// Asks for something about the nodes on which submitted jobs run. Allocators that run no jobs have no such routes.
Result<json::value> call_about_gpu_nodes(const Context& context, const char* method, const std::string& target) {
    auto answer = call_allocator(context, method, target);
    if (answer || answer.error().code != ErrorCode::not_found) return answer;
    const auto status = call_allocator(context, "GET", "/v1/status");
    if (!status || as_object(*status).contains("policy")) return answer;
    return fail(ErrorCode::unsupported,
                "larder-allocator runs no jobs here: ask the cluster manager that does; with Slurm, scontrol update "
                "nodename=NODE state=drain reason=WHY drains a node, with Kubernetes, kubectl cordon NODE");
}

std::string state_text(const json::object& node) {
    if (!node.contains("drained")) return flag_at(node, "is_usable") ? "takes jobs" : "lost, or drained elsewhere";
    const json::object& drained = object_at(node, "drained");
    return "drained by " + text_at(drained, "by") + " since " + local_time(number_at(drained, "since_unix_s"));
}

int list_gpu_nodes(const Context& context) {
    const auto answer = call_about_gpu_nodes(context, "GET", "/v1/gpu-nodes");
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    Table table({"NODE", "TYPE", ">GPUS", ">FREE", ">JOBS", "STATE"});
    for (const json::value& value : array_at(as_object(*answer), "nodes")) {
        const json::object& node = as_object(value);
        table.add({text_at(node, "node"), text_at(node, "gpu_type"), text_at(node, "gpus"), text_at(node, "free_gpus"),
                   text_at(node, "jobs"), state_text(node)});
    }
    std::fputs(table.empty() ? "the cluster manager has told no node yet\n" : table.text().c_str(), stdout);
    return kDone;
}

int drain_node(const Context& context, const std::string& name) {
    const auto answer = call_about_gpu_nodes(context, "PUT", "/v1/gpu-nodes/" + percent_encode(name) + "/drain");
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    const std::uint64_t jobs = count_at(as_object(*answer), "jobs");
    const std::string left = jobs == 0   ? "no job runs there"
                             : jobs == 1 ? "1 job runs there still"
                                         : format_count(jobs) + " jobs run there still";
    std::printf("%s is drained: %s\n", name.c_str(), left.c_str());
    return kDone;
}

int undrain_node(const Context& context, const std::string& name) {
    const auto answer = call_about_gpu_nodes(context, "DELETE", "/v1/gpu-nodes/" + percent_encode(name) + "/drain");
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
    } else {
        std::printf("%s takes jobs again\n", name.c_str());
    }
    return kDone;
}

int remove_node(const Context& context, const std::string& name) {
    const auto answer = call_allocator(context, "DELETE", "/v1/nodes/" + percent_encode(name));
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
    } else {
        std::printf("%s is removed; the bandwidth kept for it is free for other nodes\n", name.c_str());
    }
    return kDone;
}

}  // namespace

void add_node_commands(CLI::App& app, Context& context) {
    auto name = std::make_shared<std::string>();
    const auto gpus = std::make_shared<bool>(false);
    CLI::App* node = app.add_subcommand("node", "List, drain and remove nodes of the cluster");
    node->require_subcommand(1);
    CLI::App* list = node->add_subcommand("ls", "List the nodes that have reported: cache, jobs, rates, last report");
    list->alias("list");
    list->add_flag("--gpus", *gpus, "The nodes on which submitted jobs run instead: GPUs, jobs, who has drained them");
    list->callback([&context, gpus] {
        context.command = [&context, gpus] { return *gpus ? list_gpu_nodes(context) : list_nodes(context); };
    });
    const auto add = [&](const char* verb, const char* help, int (*run)(const Context&, const std::string&)) {
        auto drained = std::make_shared<std::string>();
        CLI::App* command = node->add_subcommand(verb, help);
        command->add_option("NODE", *drained, "The node's name, as in larder node ls --gpus")->required();
        command->callback([&context, drained, run] {
            context.command = [&context, drained, run] { return run(context, *drained); };
        });
    };
    add("drain", "Keep further jobs off a node, and let those that run there go on", drain_node);
    add("undrain", "Let jobs be placed on a drained node again", undrain_node);
    CLI::App* remove = node->add_subcommand("rm", "Remove a node that is gone for good, and the floors kept for it");
    remove->alias("remove");
    remove->add_option("NODE", *name, "The node's name; its daemon must have stopped and its lease must have expired")
        ->required();
    remove->callback([&context, name] { context.command = [&context, name] { return remove_node(context, *name); }; });
}

}  // namespace larder::cli
