#pragma once

// Runs jobs, as processes of this machine (engines/local_engine.h) or through a cluster manager, whose agent is another
// process (engines/agent/agent_engine.h). The scheduler tells the engine which attempts to start and stop, and polls
// the engine for events; policies do not know the engine. A restarted daemon repeats its starts. So an engine starts
// each (job, attempt) at most once, however often it is asked, and finds the attempts of a former daemon by the same
// pair. Only the engine, which knows the processes on a node, reports the node lost or drained; a node whose daemon no
// longer reports need not be lost. The local engine reports neither: its nodes are parts of this machine, and are lost
// together with the scheduler. Events may come late, or twice. One thread; no call but list() blocks.

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/live/job_record.h"

namespace larder::scheduler {

// Names an attempt of any queue. A queue that was lost is made anew, and may number its jobs from 1 again.
struct AttemptName {
    std::string queue;  // its identity; empty: the engine's own queue
    JobId job = 0;
    std::uint32_t attempt = 0;

    auto operator<=>(const AttemptName&) const = default;
};

// One attempt at running a job.
struct EngineJob {
    JobId job = 0;
    std::uint32_t attempt = 1;
    std::vector<std::string> command;
    std::string directory;
    std::map<std::string, std::string> environment;  // complete, except the variable that names its GPUs
    std::vector<NamedGpus> gpus;                     // by node, in the order of the tasks' ranks
    std::uint32_t resize = 0;  // number of the attempt's last resize, which led to `gpus`; 0: none
    double grace_s = 30;
    std::optional<RunAs> user;
    std::map<std::string, std::string> parameters;  // what the submitter tells the cluster manager: image, account
};

// A node as its cluster manager describes it.
struct NodeInventory {
    std::uint32_t gpus = 0;
    std::string gpu_type;                       // empty: the configured one
    std::map<std::string, std::string> labels;  // for people: its rack, its zone

    bool operator==(const NodeInventory&) const = default;
};

// Commands by which an operator drains a node and takes it back. Empty: Larder drains the nodes itself.
struct DrainCommands {
    std::string drain;
    std::string undrain;
};

struct EngineEvent {
    enum class Kind : std::uint8_t {
        pending,  // the cluster manager has it, but it has not begun, for the reason in `message`
        started,
        rejected,        // the cluster manager does not run it; it has not begun and will not begin
        ended,           // by itself, or because it was told to stop
        evicted,         // the cluster manager ended it for reasons of its own; the job is not at fault
        lost,            // how it ended is unknown; its processes are gone
        resized,         // resize number `resize` has been carried out
        resize_refused,  // that resize will not be carried out
        // The kinds below are of nodes.
        node_lost,     // jobs with GPUs there are reported lost, too
        node_drained,  // takes no further job; those that run there go on
        node_back,
        node_added,    // usable, with the GPUs of `inventory`
        node_removed,  // has gone for good; jobs with GPUs there are stopped or reported lost, too
        node_resized,  // has the GPUs of `inventory`; jobs keep theirs
    };
    Kind kind = Kind::started;
    std::string queue;  // whose attempt it is, if the engine tells queues apart; empty: of the engine's own queue
    JobId job = 0;
    std::uint32_t attempt = 0;
    // One of the two is set for `ended`.
    std::optional<int> exit_code;
    std::optional<int> exit_signal;
    bool was_stopping = false;            // it was still running when told to stop, by the engine or by somebody else
    bool stop_came_late = false;          // it was told to stop just after it had ended
    std::string stopped_by;               // who told it to stop, for people
    std::vector<GrantedDevices> devices;  // for started and resized: what it has, if the engine picks devices
    std::uint32_t resize = 0;             // for started: number of the last resize that has been carried out; 0: none
    std::string message;                  // why: for pending, rejected, evicted, lost and node events
    bool for_good = false;                // for rejected: asking again is in vain
    // For rejected: names of waiting jobs that the cluster manager would reject for the same reason.
    std::vector<std::string> also_rejected;
    std::optional<double> at_s;              // when it happened, Unix time; nullopt: when it is taken
    std::string node;                        // for node events
    std::optional<NodeInventory> inventory;  // for node events, if the nodes are the cluster manager's
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
    // Returns the attempts that the engine has, of any queue: those that run, and those that may begin. An attempt may
    // begin if this engine or a former one gave it to the cluster manager or prepared it for a runner, and nobody has
    // stopped it. An attempt that is known to have ended is left out. One that was started since the list was last made
    // anew may be missing. In no particular order; each attempt once. May read many files, so call it only when lists()
    // has changed.
    virtual std::vector<AttemptName> list() const = 0;
    // Returns how often the list was made anew; 0: there is no list yet. While the number stays the same, the list
    // gains no orphan.
    virtual std::uint64_t lists() const { return 1; }
    // Asks an orphan to end, as stop() does. An orphan is a listed attempt that the scheduler has neither started nor
    // adopted, or whose end the scheduler was told. Does nothing if the engine does not have the attempt. No event of
    // it is reported. An orphan that has not ended when the list is made anew is listed again. Idempotent.
    virtual void stop_orphan(const AttemptName& orphan) = 0;
    // Tells if running attempts of elastic jobs can be resized; nullopt: not known yet.
    virtual std::optional<bool> can_resize() const { return false; }
    // Lets a running attempt go on with the nodes of `job`, which has a higher resize number than before. Either nodes
    // were added or nodes were removed. A task that stays keeps its node, its GPUs and its environment. Tasks on new
    // nodes start with the environment and the ranks of `job`. Tasks on nodes that were removed are asked to end, and
    // killed after the grace period; their end is not the attempt's. Then the event `resized` is reported, or else
    // `resize_refused`. Idempotent. A later resize takes the place of an earlier one that has not been carried out.
    virtual void resize([[maybe_unused]] const EngineJob& job) {}
    // Returns the events since the last call, in order.
    virtual std::vector<EngineEvent> poll() = 0;
    // Tells that the effects of the first `events` of all events that poll() has returned are on record, and that the
    // engine has been told all that follows from the record. Called often; the number never falls.
    virtual void recorded([[maybe_unused]] std::uint64_t events) {}
    // False while nobody carries out what the engine is told, so that no attempt can begin.
    virtual bool is_connected() const { return true; }
    // Returns the commands by which this node's cluster manager drains it. unavailable: they are not known yet.
    virtual Result<DrainCommands> drain_commands([[maybe_unused]] const std::string& node) const {
        return DrainCommands{};
    }
    // Drops all data about a job's attempts. The scheduler does not ask about them again.
    virtual void forget(JobId job) = 0;
    // Returns where an attempt's output is, for people: a path of this machine, or a URL; empty: nowhere.
    virtual std::string output_of(JobId job, std::uint32_t attempt) const = 0;
    // Returns what an operator should know about how this engine runs jobs; empty: nothing.
    virtual std::string warning() const { return ""; }
};

}  // namespace larder::scheduler
