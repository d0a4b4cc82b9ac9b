#include "tools/cli/sent_events.h"

#include <algorithm>
#include <charconv>

namespace larder::cli {
namespace {

constexpr std::string_view kEnd = "\n\n";

SentEvent parse_event(std::string_view text) {
    SentEvent event;
    while (!text.empty()) {
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        const auto skip = [&line](std::string_view field) {
            if (!line.starts_with(field)) return false;
            line.remove_prefix(field.size());
            return true;
        };
        if (skip("id: ")) {
            std::uint64_t id = 0;
            if (std::from_chars(line.data(), line.data() + line.size(), id).ec == std::errc{}) event.id = id;
        } else if (skip("event: ")) {
            event.kind = line;
        } else if (skip("data: ")) {
            event.data = line;
        }
    }
    return event;
}

}  // namespace

void SentEvents::add(std::string_view part, const std::function<void(const SentEvent&)>& on_event) {
    // unfinished_ contains no end of an event, but its last byte may be the first half of one.
    std::size_t search_begin = unfinished_.empty() ? 0 : unfinished_.size() - 1;
    unfinished_ += part;
    std::size_t handled = 0;
    for (std::size_t end = 0; (end = unfinished_.find(kEnd, search_begin)) != std::string::npos;
         search_begin = handled) {
        const SentEvent event = parse_event(std::string_view(unfinished_).substr(handled, end - handled));
        handled = end + kEnd.size();
        if (!event.data.empty()) on_event(event);
    }
    unfinished_.erase(0, handled);
}

}  // namespace larder::cli
