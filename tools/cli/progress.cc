#include "tools/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/units.h"
#include "tools/cli/table.h"
#include "tools/cli/terminal.h"

namespace larder::cli {
namespace {

constexpr std::size_t kBarColumns = 24;
// A rate over a shorter time is too noisy to show.
constexpr double kRateSecondsMin = 0.5;
constexpr double kPrintEverySeconds = 10;
constexpr std::size_t kColumnsInFile = 1000;

std::string amount(std::uint64_t count, const std::string& unit) {
    return unit == "bytes" ? format_bytes(count) : format_count(count);
}

std::string bar(double part) {
    const auto full = static_cast<std::size_t>(part * kBarColumns);
    std::string text(full, '=');
    if (full < kBarColumns) text += '>';
    text.resize(kBarColumns, ' ');
    return "[" + text + "]";
}

}  // namespace

std::string progress_line(const std::string& label, const ProgressState& state, std::size_t columns) {
    std::string line = label + "  ";
    const bool known = state.total > 0;
    const double part = known ? std::min(1.0, static_cast<double>(state.done) / static_cast<double>(state.total)) : 0;
    if (known) {
        line += bar(part) + " " + std::to_string(static_cast<int>(part * 100)) + "%  ";
        line += amount(state.done, state.unit) + " of " + amount(state.total, state.unit);
    } else {
        line += amount(state.done, state.unit);
    }
    if (state.unit != "bytes") line += " " + state.unit;
    if (state.resumed > 0) line += " (" + amount(state.resumed, state.unit) + " from before)";
    if (state.seconds >= kRateSecondsMin) {
        if (!state.speed.empty()) {
            line += "  " + state.speed;
        } else if (state.bytes_done > 0) {
            line += "  " + format_bytes_per_second(static_cast<double>(state.bytes_done) / state.seconds);
        } else if (state.unit != "bytes") {
            const double per_second = static_cast<double>(state.done) / state.seconds;
            if (per_second >= 1) line += "  " + format_count(static_cast<std::uint64_t>(per_second)) + "/s";
        }
        if (known && part > 0 && part < 1) {
            line +=
                "  " + format_duration_ns(static_cast<std::int64_t>(state.seconds * (1 - part) / part * 1e9)) + " left";
        }
    }
    if (!state.waits_for.empty()) line += "  waits for " + state.waits_for;
    return cut_to(line, columns - 1);
}

ProgressLine::ProgressLine(std::string label) : label_(std::move(label)), terminal_(::isatty(STDERR_FILENO) == 1) {}

void ProgressLine::show(const ProgressState& state) {
    if (!terminal_) {
        const bool waits = !state.waits_for.empty();
        const bool is_due = state.seconds - printed_s_ >= kPrintEverySeconds;
        const bool wait_began = waits && waits_for_.empty();
        waits_for_ = state.waits_for;
        if (!is_due && !wait_began) return;
        printed_s_ = state.seconds;
        std::fprintf(stderr, "%s\n", progress_line(label_, state, kColumnsInFile).c_str());
        return;
    }
    const std::size_t columns =
        std::max<std::size_t>(20, terminal_size(STDERR_FILENO).value_or(TerminalSize{}).columns);
    std::fprintf(stderr, "\r\033[K%s", progress_line(label_, state, columns).c_str());
    std::fflush(stderr);
    shown_ = true;
}

void ProgressLine::finish() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
    shown_ = false;
}

}  // namespace larder::cli
