#pragma once

// The part of an answer that is pushed piece by piece, such as server-sent events. A handler makes a stream with
// std::make_shared, puts it into its HttpResponse, keeps a copy and pushes whenever there is news:
//
//     auto events = std::make_shared<HttpStream>();
//     events->on_close([=] { forget(events); });
//     respond({.content_type = "text/event-stream", .stream = events});
//     ...
//     events->push("data: {\"plan\": 7}\n\n");
//
// The headers go out at once. Data that the client has not taken is held up to a limit; a client that falls further
// behind is cut off. A stream is also closed when its client goes or the server stops. All calls are made on the
// server's thread; `on_close` is called there too, never from within `push`.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace larder {

class HttpStream {
public:
    explicit HttpStream(std::size_t backlog_bytes_max = 256u << 10) : backlog_bytes_max_(backlog_bytes_max) {}
    HttpStream(const HttpStream&) = delete;
    HttpStream& operator=(const HttpStream&) = delete;

    // Appends a piece. Returns false if the stream is closed.
    bool push(std::string_view piece);
    // Ends the answer properly, once the pieces pushed so far are sent.
    void end();
    bool is_open() const { return state_ == State::open; }
    // Bytes pushed and not yet taken by the kernel.
    std::size_t backlog_bytes() const { return backlog_bytes_; }
    // Sets a callback, called once when the connection has ended, whichever side ended it.
    void on_close(std::function<void()> closed) { on_close_ = std::move(closed); }

private:
    friend class HttpSession;
    enum class State : unsigned char { open, ending, overrun, closed };

    // Called by the session.
    std::string take();
    void sent(std::size_t bytes) { backlog_bytes_ -= bytes; }
    void close();

    std::size_t backlog_bytes_max_;
    std::size_t backlog_bytes_ = 0;
    std::string queued_;
    State state_ = State::open;
    std::function<void()> wake_;  // set by the session: there is work to do
    std::function<void()> on_close_;
};

}  // namespace larder
