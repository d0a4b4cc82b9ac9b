#pragma once

// The daemon's message on why a block could not be read: a completion has room for an errno only.

#include <cstdint>
#include <string>

namespace larder::detail {

struct FailedBlock {
    std::string socket;
    std::string dataset;
    std::uint64_t manifest_version = 0;
    std::uint32_t block = 0;
};

// Asks over a connection of its own, for at most two seconds. Empty if the daemon knows no more or does not answer.
std::string failure_reason(const FailedBlock& failed);

}  // namespace larder::detail
