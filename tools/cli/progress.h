#pragma once

// One line on stderr with the progress of long work, its speed and the time left. On a terminal the line is redrawn
// each time, and wiped when the work ends or the object is destroyed. Elsewhere it is printed every ten seconds, and
// when the work begins to wait for something else.

#include <cstdint>
#include <string>

namespace larder::cli {

struct ProgressState {
    std::uint64_t done = 0;
    std::uint64_t total = 0;  // 0: not known yet
    std::string unit;         // "objects"; "bytes" are formatted as sizes
    std::uint64_t bytes_done = 0;
    double seconds = 0;         // since the work began
    std::string speed{};        // shown in place of units per second, if given
    std::uint64_t resumed = 0;  // the units of `done` from before an interruption
    std::string waits_for{};    // the reason the work waits; empty: none
};

// Returns the line, at most `columns` wide.
std::string progress_line(const std::string& label, const ProgressState& state, std::size_t columns);

class ProgressLine {
public:
    explicit ProgressLine(std::string label);
    ~ProgressLine() { finish(); }
    ProgressLine(const ProgressLine&) = delete;

    void show(const ProgressState& state);
    void finish();

private:
    std::string label_;
    bool terminal_ = false;
    bool shown_ = false;
    std::string waits_for_;  // the reason last printed, without a terminal
    double printed_s_ = 0;
};

}  // namespace larder::cli
