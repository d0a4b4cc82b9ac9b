#pragma once

// Assembles server-sent events from the pieces in which a stream arrives.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace larder::cli {

struct SentEvent {
    std::optional<std::uint64_t> id;
    std::string_view kind;
    std::string_view data;
};

class SentEvents {
public:
    // Passes on each event that is now complete; its text is valid during the call. Comments are left out.
    void add(std::string_view part, const std::function<void(const SentEvent&)>& on_event);

private:
    std::string unfinished_;
};

}  // namespace larder::cli
