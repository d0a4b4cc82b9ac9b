#include "tools/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace larder::cli {

std::optional<TerminalSize> terminal_size(int fd) {
    if (::isatty(fd) != 1) return std::nullopt;
    winsize size{};
    if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return TerminalSize{};
    return TerminalSize{.columns = size.ws_col, .rows = size.ws_row};
}

KeyWatch::KeyWatch() {
    // The kernel stops a background program that changes the terminal.
    if (::isatty(STDIN_FILENO) != 1 || ::tcgetpgrp(STDIN_FILENO) != ::getpgrp()) return;
    if (::tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    watching_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0;
}

KeyWatch::~KeyWatch() {
    if (watching_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

std::string KeyWatch::read() {
    std::array<char, 64> typed{};
    const ssize_t count = ::read(STDIN_FILENO, typed.data(), typed.size());
    return {typed.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
}

}  // namespace larder::cli
