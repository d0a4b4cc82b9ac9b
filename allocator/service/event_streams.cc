#include "allocator/service/event_streams.h"

#include <string>

#include "allocator/service/json_lists.h"
#include "base/server/json_text.h"

namespace larder::allocator {
namespace {

// A new reader is given the whole log at once.
constexpr std::size_t kBacklogBytesMax = 4u << 20;
// A status lists every job. The next status waits until the client has received the last one.
constexpr std::size_t kStatusBytesMax = 64u << 20;
constexpr std::int64_t kKeepAlive_ns = 15'000'000'000;

// JSON has no line breaks of its own, so one data line holds it.
std::string text_of(const Event& event) {
    return "id: " + std::to_string(event.number) + "\nevent: " + std::string(name(event.kind)) +
           "\ndata: " + json_text(to_json(event)) + "\n\n";
}

}  // namespace

std::shared_ptr<HttpStream> EventStreams::open(std::uint64_t after, std::int64_t status_every_ns, std::int64_t now_ns) {
    const std::size_t status_bytes_max = status_every_ns > 0 ? kStatusBytesMax : 0;
    auto stream = std::make_shared<HttpStream>(kBacklogBytesMax + status_bytes_max);
    readers_.push_back({.stream = stream,
                        .after = after,
                        .pushed_ns = now_ns,
                        .status_every_ns = status_every_ns,
                        .next_status_ns = now_ns});
    return stream;
}

void EventStreams::push(const EventLog& events, const Status& status, std::int64_t now_ns) {
    std::erase_if(readers_, [](const Reader& reader) { return !reader.stream->is_open(); });
    std::string status_text;
    for (Reader& reader : readers_) {
        const bool status_is_due =
            reader.status_every_ns > 0 && now_ns >= reader.next_status_ns && reader.stream->backlog_bytes() == 0;
        if (status_is_due && status_text.empty()) status_text = "event: status\ndata: " + status() + "\n\n";
        std::string piece;
        if (reader.after != events.last()) {
            for (const Event& event : events.after(reader.after)) piece += text_of(event);
            reader.after = events.last();
        } else if (now_ns - reader.pushed_ns >= kKeepAlive_ns) {
            piece = ": nothing new\n\n";
        }
        if (status_is_due) {
            piece += status_text;
            reader.next_status_ns = now_ns + reader.status_every_ns;
        }
        if (piece.empty()) continue;
        reader.stream->push(piece);
        reader.pushed_ns = now_ns;
    }
}

void EventStreams::end() {
    for (const Reader& reader : readers_) reader.stream->end();
    readers_.clear();
}

}  // namespace larder::allocator
