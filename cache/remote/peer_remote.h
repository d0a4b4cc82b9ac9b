#pragma once

// The cache of another node. Reads work as with a remote. Blocks may be offered to a peer only: a Remote is never
// written.

#include "cache/remote.h"

namespace larder::cache {

class PeerRemote : public Remote {
public:
    // Sends `block.into` to the peer. Completes like a read: with ok if the peer has taken the block, object_missing if
    // the peer refused it.
    virtual void offer(RemoteRead& block) = 0;
};

}  // namespace larder::cache
