#include "tools/cli/live.h"

#include <unistd.h>

#include <cstdio>

#include "tools/cli/api.h"
#include "tools/cli/interrupt.h"

namespace larder::cli {
namespace {

void show(std::string text, bool in_place, bool first) {
    if (in_place) {
        // Home, and each line wiped to its end: no flicker, as a clear of the whole screen would give.
        for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 4) text.insert(at, "\033[K");
        if (first) std::fputs("\033[2J", stdout);
        text = "\033[H" + text + "\033[J";
    }
    std::fputs(text.c_str(), stdout);
}

}  // namespace

int show_live(const Context& context, const LiveOptions& options, const std::function<Result<void>()>& before,
              const std::function<Result<Look>()>& look) {
    const bool in_place = ::isatty(STDOUT_FILENO) == 1 && !context.json;
    const auto wait_ms = static_cast<std::int64_t>(options.interval_s * 1000);
    const InterruptWatch interrupt;
    if (before) {
        if (auto begun = before(); !begun) return report(context, begun.error());
        if (interrupt.pressed_within(wait_ms)) return kDone;
    }
    for (std::uint64_t shown = 0;;) {
        auto now = look();
        if (!now) return report(context, now.error());
        if (context.json) {
            print_json(now->json);
        } else {
            show(std::move(now->text), in_place, shown == 0);
        }
        std::fflush(stdout);
        if (++shown == options.count || interrupt.pressed_within(wait_ms)) return kDone;
    }
}

}  // namespace larder::cli
