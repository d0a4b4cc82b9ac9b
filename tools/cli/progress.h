#pragma once

// One line on stderr that shows how far long work is, how fast it goes and how long it will still take. When stderr is
// no terminal it shows nothing. The line is wiped when the work ends or the object goes.

#include <cstdint>
#include <string>

namespace larder::cli {

struct ProgressState {
    std::uint64_t done = 0;
    std::uint64_t total = 0;  // 0: not known yet
    std::string unit;         // "objects"; "bytes" are written as sizes
    std::uint64_t bytes_done = 0;
    double seconds = 0;         // since the work began
    std::string speed{};        // shown in place of units per second, if given
    std::uint64_t resumed = 0;  // of those done: from before the work was stopped
};

// The line, at most `columns` wide.
std::string progress_line(const std::string& label, const ProgressState& state, std::size_t columns);

class Progress {
public:
    explicit Progress(std::string label);
    ~Progress() { finish(); }
    Progress(const Progress&) = delete;

    void show(const ProgressState& state);
    void finish();

private:
    std::string label_;
    bool terminal_ = false;
    bool shown_ = false;
};

}  // namespace larder::cli
