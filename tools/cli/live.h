#pragma once

// A view that is refreshed until Ctrl-C or q. A look is the content of one refresh. On a terminal each look replaces
// the one before; in a file or a pipe the looks follow each other; with --json each look is a line of its own.

#include <boost/json/value.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tools/cli/context.h"
#include "tools/cli/table.h"

namespace larder::cli {

struct LiveViewOptions {
    double interval_s = 1;
    std::uint64_t count = 0;  // the number of looks; 0: until Ctrl-C or q
    RowChoice rows{};         // changed by keys: see LiveKeys
};

struct Look {
    boost::json::value json;
    std::function<std::string(const RowChoice&)> text;
};

// Turns keys into a choice of rows: < and > go through the columns to sort by, r reverses, / begins a filter, which
// Enter ends and Escape drops.
class LiveKeys {
public:
    LiveKeys(RowChoice rows, std::vector<std::string> columns) : rows_(std::move(rows)), columns_(std::move(columns)) {}
    // Returns true if the user wants to quit.
    bool take(std::string_view keys);
    const RowChoice& rows() const { return rows_; }
    // Says what the keys do, and what is chosen.
    std::string footer() const;

private:
    void move_column(std::size_t step);

    RowChoice rows_;
    std::vector<std::string> columns_;
    bool types_filter_ = false;
};

// Prints looks on stdout.
class Screen {
public:
    Screen(const Context& context, const LiveKeys& keys);
    void paint(Look look);
    // Paints the last look again, after the choice of rows has changed.
    void repaint();
    // The maximum width of a look's text; unlimited without a terminal.
    static std::size_t columns();

private:
    void show();

    const LiveKeys& keys_;
    Look look_;
    bool json_;
    bool in_place_;
    bool first_ = true;
};

// Returns an error if `rows` names none of the columns, or if it is chosen where only JSON is printed.
Result<void> check_rows(const Context& context, const RowChoice& rows, const std::vector<std::string>& columns);

// Shows looks from `next_look`. `columns`: those that rows can be sorted by. `prepare`, if given, is called once, an
// interval ahead of the first look. Returns the exit code.
int show_live(const Context& context, const LiveViewOptions& options, const std::vector<std::string>& columns,
              const std::function<Result<void>()>& prepare, const std::function<Result<Look>()>& next_look);

// Shows the cluster as the allocator sees it, instead of this node.
int cluster_top(Context context, const LiveViewOptions& options);

}  // namespace larder::cli
