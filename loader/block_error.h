#pragma once

// The errors of a loader that cannot deliver a batch.

#include <string>

#include "base/error.h"
#include "cache/protocol/manifest.h"
#include "loader/block_client.h"

namespace larder::detail {

// Describes the failure of a block: which object, what happened to it, what to do. Asks the daemon for the remote's own
// message, so it may take a moment.
Error block_error(const BlockClient& client, const BlockEntry& entry, const std::string& dataset);

// The error if awaited blocks have no room, and nothing in flight could make room.
Error starved_error(const BlockClient& client, const std::string& who_holds);

}  // namespace larder::detail
