#include "base/server/http_stream.h"

#include <utility>

namespace larder {

bool HttpStream::push(std::string_view piece) {
    if (state_ != State::open) return false;
    if (piece.size() > backlog_bytes_max_ - backlog_bytes_) {
        state_ = State::overrun;
        queued_.clear();
    } else {
        queued_ += piece;
        backlog_bytes_ += piece.size();
    }
    if (wake_) wake_();
    return state_ == State::open;
}

void HttpStream::end() {
    if (state_ != State::open) return;
    state_ = State::ending;
    if (wake_) wake_();
}

std::string HttpStream::take() {
    return std::exchange(queued_, {});
}

void HttpStream::close() {
    if (state_ == State::closed) return;
    state_ = State::closed;
    queued_.clear();
    wake_ = nullptr;
    if (const auto closed = std::exchange(on_close_, nullptr)) closed();
}

}  // namespace larder
