#pragma once

// The names of events in messages of agents.

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "scheduler/live/engine.h"

namespace larder::scheduler {

inline constexpr std::array kEngineEventNames{
    std::pair{EngineEvent::Kind::pending, std::string_view("pending")},
    std::pair{EngineEvent::Kind::started, std::string_view("started")},
    std::pair{EngineEvent::Kind::rejected, std::string_view("rejected")},
    std::pair{EngineEvent::Kind::ended, std::string_view("ended")},
    std::pair{EngineEvent::Kind::evicted, std::string_view("evicted")},
    std::pair{EngineEvent::Kind::lost, std::string_view("lost")},
    std::pair{EngineEvent::Kind::resized, std::string_view("resized")},
    std::pair{EngineEvent::Kind::resize_refused, std::string_view("resize_refused")},
    std::pair{EngineEvent::Kind::node_lost, std::string_view("node_lost")},
    std::pair{EngineEvent::Kind::node_drained, std::string_view("node_drained")},
    std::pair{EngineEvent::Kind::node_back, std::string_view("node_back")},
    std::pair{EngineEvent::Kind::node_added, std::string_view("node_added")},
    std::pair{EngineEvent::Kind::node_removed, std::string_view("node_removed")},
    std::pair{EngineEvent::Kind::node_resized, std::string_view("node_resized")},
};

constexpr std::string_view name(EngineEvent::Kind kind) {
    return std::ranges::find(kEngineEventNames, kind, [](const auto& named) { return named.first; })->second;
}

}  // namespace larder::scheduler
