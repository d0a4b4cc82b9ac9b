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
    CLI::App* node = app.add_subcommand("node", "List and remove nodes of the cluster");
    node->require_subcommand(1);
    node->add_subcommand("ls", "List the nodes that have reported: cache, jobs, rates, when last heard from")
        ->alias("list")
        ->callback([&context] { context.command = [&context] { return list_nodes(context); }; });
    CLI::App* remove = node->add_subcommand("rm", "Remove a node that is gone for good, and the floors kept for it");
    remove->alias("remove");
    remove->add_option("NODE", *name, "The node's name; its daemon must have stopped and its lease must have expired")
        ->required();
    remove->callback([&context, name] { context.command = [&context, name] { return remove_node(context, *name); }; });
}

}  // namespace larder::cli
