#pragma once

// A view that is refreshed until Ctrl-C or q. A look is the content of one refresh. On a terminal each look replaces
// the one before; in a file or a pipe the looks follow each other; with --json each look is a line of its own.

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

// Prints looks on stdout.
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

// Shows looks from `next_look`. `prepare`, if given, is called once, an interval ahead of the first look. Returns the
// exit code.
int show_live(const Context& context, const LiveViewOptions& options, const std::function<Result<void>()>& prepare,
              const std::function<Result<Look>()>& next_look);

// Shows the cluster as the allocator sees it, instead of this node.
int cluster_top(Context context, const LiveViewOptions& options);

}  // namespace larder::cli
