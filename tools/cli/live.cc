#include "tools/cli/live.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tools/cli/admin_calls.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/table.h"
#include "tools/cli/terminal.h"

namespace larder::cli {
namespace {

// Clips the text to the terminal: one more line would scroll the first away, and a longer line would wrap.
std::string clip(const std::string& text, const TerminalSize& size) {
    std::string shown;
    std::size_t begin = 0;
    for (std::size_t line = 0; line + 1 < size.rows && begin < text.size(); ++line) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        shown += cut_to(text.substr(begin, end - begin), size.columns) + '\n';
        begin = end + 1;
    }
    return shown;
}

void erase_last_letter(std::string& text) {
    const auto continues = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; };
    while (!text.empty() && continues(text.back())) text.pop_back();
    if (!text.empty()) text.pop_back();
}

}  // namespace

bool LiveKeys::take(std::string_view keys) {
    for (const char key : keys) {
        constexpr char kBackspace = 0x7f;
        constexpr char kEscape = 0x1b;
        if (types_filter_) {
            if (key == '\n' || key == '\r')
                types_filter_ = false;
            else if (key == kEscape)
                types_filter_ = false, rows_.filter.clear();
            else if (key == kBackspace || key == '\b')
                erase_last_letter(rows_.filter);
            else if (static_cast<unsigned char>(key) >= ' ')
                rows_.filter += key;
            continue;
        }
        switch (key) {
            case 'q':
            case 'Q': return true;
            case '>': move_column(1); break;
            case '<': move_column(columns_.size()); break;
            case 'r': rows_.reversed = !rows_.reversed; break;
            case '/': types_filter_ = true, rows_.filter.clear(); break;
            default: break;
        }
    }
    return false;
}

// One place more than columns: no sorting.
void LiveKeys::move_column(std::size_t step) {
    const auto at = static_cast<std::size_t>(std::ranges::find(columns_, rows_.column) - columns_.begin());
    const std::size_t next = (at + step) % (columns_.size() + 1);
    rows_.column = next < columns_.size() ? columns_[next] : "";
}

std::string LiveKeys::footer() const {
    if (types_filter_) return "filter: " + rows_.filter + "_ (Enter: keep, Esc: drop)\n";
    std::string text = "press q to quit, < > to sort";
    if (!rows_.column.empty()) text += " (" + rows_.column + (rows_.reversed ? " reversed)" : ")");
    text += ", r to reverse, / to filter";
    if (!rows_.filter.empty()) text += " (" + rows_.filter + ")";
    return text + "\n";
}

Screen::Screen(const Context& context, const LiveKeys& keys)
    : keys_(keys), json_(context.json), in_place_(::isatty(STDOUT_FILENO) == 1 && !context.json) {}

std::size_t Screen::columns() {
    const auto size = terminal_size(STDOUT_FILENO);
    return size ? size->columns : std::string::npos;
}

void Screen::paint(Look look) {
    look_ = std::move(look);
    show();
}

void Screen::repaint() {
    if (in_place_ && !first_) show();
}

void Screen::show() {
    if (json_) {
        print_json(look_.json);
    } else if (in_place_) {
        std::string text = clip(look_.text(keys_.rows()) + "\n" + keys_.footer(),
                                terminal_size(STDOUT_FILENO).value_or(TerminalSize{}));
        // Moves home and wipes each line to its end: clearing the whole screen would flicker.
        for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 4) text.insert(at, "\033[K");
        if (first_) std::fputs("\033[2J", stdout);
        std::fputs(("\033[H" + text + "\033[J").c_str(), stdout);
    } else {
        std::fputs(look_.text(keys_.rows()).c_str(), stdout);
    }
    first_ = false;
    std::fflush(stdout);
}

Result<void> check_rows(const Context& context, const RowChoice& rows, const std::vector<std::string>& columns) {
    if (context.json && (!rows.column.empty() || rows.reversed || !rows.filter.empty())) {
        return fail(ErrorCode::invalid_argument, "--sort, --reverse and --filter are for tables, not for --json");
    }
    if (rows.column.empty() || std::ranges::find(columns, rows.column) != columns.end()) return {};
    std::string all;
    for (const std::string& column : columns) all += (all.empty() ? "" : ", ") + column;
    return fail(ErrorCode::invalid_argument, "--sort " + rows.column + " is no column here: " + all);
}

int show_live(const Context& context, const LiveViewOptions& options, const std::vector<std::string>& columns,
              const std::function<Result<void>()>& prepare, const std::function<Result<Look>()>& next_look) {
    if (auto checked = check_rows(context, options.rows, columns); !checked) return report(context, checked.error());
    LiveKeys keys(options.rows, columns);
    Screen screen(context, keys);
    const auto wait_ms = static_cast<std::int64_t>(options.interval_s * 1000);
    const InterruptWatch interrupt([&](std::string_view typed) {
        if (keys.take(typed)) return true;
        screen.repaint();
        return false;
    });
    if (prepare) {
        if (auto begun = prepare(); !begun) return report(context, begun.error());
        if (interrupt.pressed_within(wait_ms)) return kDone;
    }
    for (std::uint64_t shown = 0;;) {
        auto now = next_look();
        if (!now) return report(context, now.error());
        screen.paint(std::move(*now));
        if (++shown == options.count || interrupt.pressed_within(wait_ms)) return kDone;
    }
}

}  // namespace larder::cli
