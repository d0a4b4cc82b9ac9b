#pragma once

// A loader process gets its session by a handshake. It connects to the daemon's SOCK_SEQPACKET socket, opens a dataset
// (and gets the manifest's fd), attaches (and gets its rings, slots and eventfd), and from then on talks to a
// data-plane thread. Anyone may connect; each dataset checks access by the credentials that the kernel reports. The
// server trusts nothing that a client sends. It closes a client that stalls or sends garbage and frees the client's
// resources.
//
// Runs on the control thread (`context`) and never blocks it.

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/server/http.h"
#include "cache/control/job_limits.h"
#include "cache/protocol/manifest.h"
#include "cache/shard/shard.h"

namespace larder::cache {

// One immutable version of a dataset, as sessions open it.
struct DatasetVersion {
    std::shared_ptr<const protocol::Manifest> manifest;
    FileDescriptor manifest_fd;  // read-only, to be sent to clients

    std::uint64_t dataset_id() const { return manifest->header().dataset_id; }
    std::uint64_t version() const { return manifest->header().version; }
};

// The server's interface to the node. Called on the control thread.
class SessionHost {
public:
    virtual ~SessionHost() = default;
    // Gets ready for `open` and `explain`, which do not block, and then calls `done`: at once, or later if the client's
    // groups must be looked up.
    virtual void prepare(const std::string& /*dataset*/, const PeerCredentials& /*peer*/, std::function<void()> done) {
        done();
    }
    // The version for this client, or why it may not read the dataset. Version 0 is the newest.
    virtual Result<std::shared_ptr<const DatasetVersion>> open(const std::string& dataset, std::uint64_t version,
                                                               const PeerCredentials& peer) = 0;
    // Returns the reason why the last read of a block's object failed; empty if unknown. An error if the client may not
    // read the dataset.
    virtual Result<std::string> explain(const std::string& dataset, std::uint64_t version, std::uint32_t block,
                                        const PeerCredentials& peer) = 0;
    // The token bucket of all sessions of a job, or why this client can have no session of the job here.
    virtual Result<std::shared_ptr<TokenBucket>> bucket(const std::string& job, JobUser user) = 0;
    // Takes over a session and hands it to its data-plane thread.
    virtual void attach(SessionSetup setup) = 0;
    // The first `bytes` of the session's slot memory are populated; see SlotKeeper::Populated. Any thread; the session
    // may have ended.
    virtual void slots_populated(std::uint64_t dataset_id, std::uint64_t session_id, std::uint64_t bytes,
                                 bool settled) = 0;
};

struct HandshakeLimits {
    std::uint64_t session_slot_bytes_max = std::uint64_t{4} << 30;
    // For all sessions together. A session counts until it is closed, no read into its slots is in flight, and no
    // process has its memory open or mapped.
    std::uint64_t slot_bytes_max = ~std::uint64_t{0};
    std::uint32_t sessions_max = 1024;
    double user_part = 0.5;  // of slot_bytes_max and sessions_max, for the sessions of one user
    // Root and the daemon's own user, who could stop the daemon anyway, may take everything.
    std::function<bool(uid_t user)> is_unlimited = [](uid_t user) { return user == 0 || user == ::geteuid(); };
    // At once. When they are all taken, a new client takes the place of the oldest of the user who has most.
    std::uint32_t handshakes_max = 128;
    std::int64_t stall_ms = 5'000;  // a client that sends nothing for this long is closed
};

class HandshakeServer {
public:
    // `context` and `host` must outlive the server. The server must outlive the slots of all sessions.
    HandshakeServer(boost::asio::io_context& context, SessionHost& host, HandshakeLimits limits);
    ~HandshakeServer();

    Result<void> listen(const std::string& path, unsigned mode);
    // Stops listening and closes unfinished handshakes; sessions continue. Call it on the context's thread, or when the
    // context does not run.
    void stop();

    // Any thread. `sessions` leaves out ended ones, whatever their clients still map; `slot_bytes` does not.
    std::uint32_t sessions() const;
    std::uint64_t slot_bytes() const;

private:
    struct State;
    std::shared_ptr<State> state_;
};

}  // namespace larder::cache
