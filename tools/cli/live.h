#pragma once

// A view that is looked at again and again until Ctrl-C or q: on a terminal it stays in place, into a file or a pipe
// one look follows the other, with --json each as a line of its own.

#include <boost/json/value.hpp>

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"
#include "tools/cli/context.h"

namespace larder::cli {

struct LiveOptions {
    double interval_s = 1;
    std::uint64_t count = 0;  // looks before it ends; 0: until Ctrl-C or q
};

struct Look {
    boost::json::value json;
    std::string text;
};

// Where looks go.
class Screen {
public:
    explicit Screen(const Context& context);
    void paint(const Look& look);
    // How wide a look's text may be; without a terminal there is no limit.
    static std::size_t columns();

private:
    bool json_;
    bool in_place_;
    bool first_ = true;
};

// `before` is called once, an interval ahead of the first look. Gives the exit code.
int show_live(const Context& context, const LiveOptions& options, const std::function<Result<void>()>& before,
              const std::function<Result<Look>()>& look);

// The cluster as the allocator sees it, instead of this node.
int cluster_top(const Context& context, const LiveOptions& options);

}  // namespace larder::cli
