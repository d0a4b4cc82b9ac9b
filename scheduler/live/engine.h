#pragma once

// What runs jobs: processes of this machine (engines/local_engine.h), or a cluster manager. The scheduler tells it what
// to start and stop, and asks what has happened; policies know nothing of it. A start is told again after a restart of
// the daemon, so an engine starts each (job, attempt) at most once, whoever asks and how often; what a former daemon
// had started it finds again by the same pair. Whether a node is lost is the engine's to say, who alone knows what runs
// there; that its daemon reports no more is no sign of it. The local engine never does: its nodes are parts of this
// machine, and with it the scheduler is lost, too. A cluster manager does. One thread; no call waits.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/live/job_record.h"

namespace larder::scheduler {

// One attempt at running a job.
struct EngineJob {
    JobId job = 0;
    std::uint32_t attempt = 1;
    std::vector<std::string> command;
    std::string directory;
    std::map<std::string, std::string> environment;  // all it is to have, but what names its GPUs to it
    std::vector<NamedGpus> gpus;
    double grace_s = 30;
    std::optional<RunAs> user;
};

struct EngineEvent {
    enum class Kind : std::uint8_t {
        started,
        ended,      // by itself, or because it was told to stop
        lost,       // whether it ended is not known, or not how: what is left of it is gone
        node_lost,  // jobs that had a share there are reported lost, too
        node_back,
    };
    Kind kind = Kind::started;
    JobId job = 0;
    std::uint32_t attempt = 0;
    // Of `ended`: one of both.
    std::optional<int> exit_code;
    std::optional<int> exit_signal;
    bool was_stopping = false;  // it had been told to stop, and ran then
    std::string message;        // why it is lost, or why it could not be started
    std::string node;           // of node events
};

class Engine {
public:
    virtual ~Engine() = default;
    // Starts it, or finds it started. That it could not be is told as an event.
    virtual void start(const EngineJob& job) = 0;
    // Takes up one of a former daemon that was already running; never starts it.
    virtual void adopt(const EngineJob& job) = 0;
    // Asks it to end; after its grace it is killed. An attempt that has not begun will not. Told again, nothing
    // changes.
    virtual void stop(JobId job, std::uint32_t attempt) = 0;
    // What has happened since the last call, in order.
    virtual std::vector<EngineEvent> poll() = 0;
    // Its attempts will not be asked about any more: what is kept of them may go.
    virtual void forget(JobId job) = 0;
    // Where its output is, for people; empty: nowhere.
    virtual std::string output_of(JobId job, std::uint32_t attempt) const = 0;
};

}  // namespace larder::scheduler
