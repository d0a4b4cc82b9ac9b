#pragma once

// A view refreshed until Ctrl-C or q. On a terminal it stays in place; in a file or a pipe the looks follow each other;
// with --json each is a line of its own.

#include <boost/json/value.hpp>

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"
#include "tools/cli/context.h"

namespace larder::cli {

struct LiveViewOptions {
    double interval_s = 1;
    std::uint64_t count = 0;  // the number of looks; 0: until Ctrl-C or q
};

struct Look {
    boost::json::value json;
    std::string text;
};

// The output for looks.
class Screen {
public:
    explicit Screen(const Context& context);
    void paint(const Look& look);
    // The maximum width of a look's text; unlimited without a terminal.
    static std::size_t columns();

private:
    bool json_;
    bool in_place_;
    bool first_ = true;
};

// Shows looks. `before` is called once, an interval ahead of the first look. Returns the exit code.
int show_live(const Context& context, const LiveViewOptions& options, const std::function<Result<void>()>& before,
              const std::function<Result<Look>()>& look);

// Shows the cluster as the allocator sees it, instead of this node.
int cluster_top(const Context& context, const LiveViewOptions& options);

}  // namespace larder::cli
