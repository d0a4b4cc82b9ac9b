#include "tools/cli/sent_events.h"

#include <algorithm>
#include <charconv>

namespace larder::cli {
namespace {

constexpr std::string_view kEnd = "\n\n";

SentEvent event_of(std::string_view text) {
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

void SentEvents::add(std::string_view part, const std::function<void(const SentEvent&)>& take) {
    // The rest has no end of an event in it, but perhaps half of one.
    std::size_t from = unfinished_.empty() ? 0 : unfinished_.size() - 1;
    unfinished_ += part;
    std::size_t taken = 0;
    for (std::size_t end = 0; (end = unfinished_.find(kEnd, from)) != std::string::npos; from = taken) {
        const SentEvent event = event_of(std::string_view(unfinished_).substr(taken, end - taken));
        taken = end + kEnd.size();
        if (!event.data.empty()) take(event);
    }
    unfinished_.erase(0, taken);
}

}  // namespace larder::cli
