#pragma once

// What a loader says when it cannot give a batch.

#include <string>

#include "base/error.h"
#include "cache/protocol/manifest.h"
#include "loader/block_client.h"

namespace larder::detail {

// Why a failed block could not be had: which object, what happened to it, what to do. Asks the daemon for the remote's
// own words, and so may take a moment.
Error block_error(const BlockClient& client, const BlockEntry& entry, const std::string& dataset);

// What waits has no room and nothing is under way that could make some.
Error starved_error(const BlockClient& client, const std::string& who_holds);

}  // namespace larder::detail
