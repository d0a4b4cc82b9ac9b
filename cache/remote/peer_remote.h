#pragma once

// Another node's cache, read like a remote, and offered blocks. Offering is for peers alone: a Remote is never written.

#include "cache/remote.h"

namespace larder::cache {

class PeerRemote : public Remote {
public:
    // `into` of the RemoteRead is what is sent; it ends ok when the peer has taken the block, object_missing when it
    // did not want it. Completes as a read does.
    virtual void offer(RemoteRead& block) = 0;
};

}  // namespace larder::cache
