#pragma once

// Runs jobs, as processes of this machine (engines/local_engine.h) or through a cluster manager. The scheduler tells
// the engine which attempts to start and stop, and polls the engine for events; policies do not know the engine. A
// restarted daemon repeats its starts. So an engine starts each (job, attempt) at most once, however often it is asked,
// and finds the attempts of a former daemon by the same pair. Only the engine, which knows the processes on a node,
// reports the node lost; a node whose daemon no longer reports need not be lost. The local engine never reports a lost
// node: its nodes are parts of this machine, and are lost together with the scheduler. One thread; no call blocks.

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
    std::map<std::string, std::string> environment;  // complete, except the variable that names its GPUs
    std::vector<NamedGpus> gpus;
    double grace_s = 30;
    std::optional<RunAs> user;
};

struct EngineEvent {
    enum class Kind : std::uint8_t {
        started,
        ended,      // by itself, or because it was told to stop
        lost,       // how it ended is unknown; its processes are gone
        node_lost,  // jobs with GPUs there are reported lost, too
        node_back,
    };
    Kind kind = Kind::started;
    JobId job = 0;
    std::uint32_t attempt = 0;
    // One of the two is set for `ended`.
    std::optional<int> exit_code;
    std::optional<int> exit_signal;
    bool was_stopping = false;    // it was still running when told to stop, by the engine or by somebody else
    bool stop_came_late = false;  // it was told to stop just after it had ended
    std::string stopped_by;       // who told it to stop, for people
    std::string message;          // why the attempt is lost or could not be started
    std::string node;             // for node events
};

class Engine {
public:
    virtual ~Engine() = default;
    // Starts an attempt, or finds it started. A failed start is reported as an event.
    virtual void start(const EngineJob& job) = 0;
    // Watches an attempt that a former daemon had started; never starts it.
    virtual void adopt(const EngineJob& job) = 0;
    // Asks an attempt to end, and kills it after its grace period. An attempt that has not begun will never begin.
    // Idempotent.
    virtual void stop(JobId job, std::uint32_t attempt) = 0;
    // Returns the events since the last call, in order.
    virtual std::vector<EngineEvent> poll() = 0;
    // Drops all data about a job's attempts. The scheduler does not ask about them again.
    virtual void forget(JobId job) = 0;
    // Returns where an attempt's output is, for people; empty: nowhere.
    virtual std::string output_of(JobId job, std::uint32_t attempt) const = 0;
    // Returns what an operator should know about how this engine runs jobs; empty: nothing.
    virtual std::string warning() const { return ""; }
};

}  // namespace larder::scheduler
