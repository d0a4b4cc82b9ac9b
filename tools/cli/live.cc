#include "tools/cli/live.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

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

}  // namespace

Screen::Screen(const Context& context)
    : json_(context.json), in_place_(::isatty(STDOUT_FILENO) == 1 && !context.json) {}

std::size_t Screen::columns() {
    const auto size = terminal_size(STDOUT_FILENO);
    return size ? size->columns : std::string::npos;
}

void Screen::paint(const Look& look) {
    if (json_) {
        print_json(look.json);
    } else if (in_place_) {
        std::string text =
            clip(look.text + "\npress q to quit\n", terminal_size(STDOUT_FILENO).value_or(TerminalSize{}));
        // Moves home and wipes each line to its end: clearing the whole screen would flicker.
        for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 4) text.insert(at, "\033[K");
        if (first_) std::fputs("\033[2J", stdout);
        std::fputs(("\033[H" + text + "\033[J").c_str(), stdout);
    } else {
        std::fputs(look.text.c_str(), stdout);
    }
    first_ = false;
    std::fflush(stdout);
}

int show_live(const Context& context, const LiveViewOptions& options, const std::function<Result<void>()>& prepare,
              const std::function<Result<Look>()>& next_look) {
    Screen screen(context);
    const auto wait_ms = static_cast<std::int64_t>(options.interval_s * 1000);
    const InterruptWatch interrupt(InterruptWatch::Keys::q);
    if (prepare) {
        if (auto begun = prepare(); !begun) return report(context, begun.error());
        if (interrupt.pressed_within(wait_ms)) return kDone;
    }
    for (std::uint64_t shown = 0;;) {
        auto now = next_look();
        if (!now) return report(context, now.error());
        screen.paint(*now);
        if (++shown == options.count || interrupt.pressed_within(wait_ms)) return kDone;
    }
}

}  // namespace larder::cli
