#pragma once

// The size of a terminal, and its keys one by one.

#include <termios.h>

#include <cstddef>
#include <optional>
#include <string>

namespace larder::cli {

struct TerminalSize {
    std::size_t columns = 80;
    std::size_t rows = 24;
};

// Returns nothing if the descriptor is no terminal, and 80 by 24 if the terminal does not report its size.
std::optional<TerminalSize> terminal_size(int fd);

// While it lives, keys typed at standard input arrive at once and are not echoed, if standard input is a terminal and
// this program is in its foreground. The destructor restores the terminal. One at a time.
class KeyWatch {
public:
    KeyWatch();
    ~KeyWatch();
    KeyWatch(const KeyWatch&) = delete;
    KeyWatch& operator=(const KeyWatch&) = delete;

    // The descriptor to poll, standard input; -1 if no keys are watched.
    int fd() const { return watching_ ? 0 : -1; }
    // Reads the typed keys; empty if the terminal has gone.
    std::string read();

private:
    bool watching_ = false;
    termios before_{};
};

}  // namespace larder::cli
