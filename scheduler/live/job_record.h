#pragma once

// All that is known of a submitted job, from its submission until it is forgotten as history. What it holds is named by
// nodes' names, so that a record outlives a change of the configuration.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/decide.h"
#include "scheduler/live/submission.h"
#include "scheduler/placement/placer.h"

namespace larder::scheduler {

enum class Phase : std::uint8_t {
    waiting,
    placed,    // has GPUs, but waits until those that had them before are gone
    starting,  // the engine is told, or about to be: this is on record first
    running,
    stopping,  // asked to end; holds its GPUs until it has
    succeeded,
    failed,
    cancelled,
};
inline constexpr std::size_t kPhases = 8;
std::string_view name(Phase phase);
std::string_view past(Phase ended);  // "has failed", "was cancelled"
inline bool has_ended(Phase phase) {
    return phase >= Phase::succeeded;
}
// A process may be there.
inline bool is_with_engine(Phase phase) {
    return phase == Phase::starting || phase == Phase::running || phase == Phase::stopping;
}

enum class StopCause : std::uint8_t { none, preempted, moved, cancelled };
std::string_view name(StopCause cause);

struct NamedGpus {
    std::string node;
    std::uint64_t gpus = 0;  // bit i: GPU i

    bool operator==(const NamedGpus&) const = default;
};

// A cell of a tenant's that GPUs are held by: the one of that level that has this GPU of the node.
struct NamedCell {
    std::string node;
    std::uint32_t gpu = 0;
    std::string level;

    bool operator==(const NamedCell&) const = default;
};

struct Allotment {
    std::vector<NamedGpus> gpus;
    std::uint32_t count = 0;
    std::string gpu_type;
    bool opportunistic = false;
    std::optional<JobId> packed_with;
    std::vector<NamedCell> cells;  // where the cluster has some, so that it has the same after a restart

    bool operator==(const Allotment&) const = default;
};

// The job's decision log.
struct LogEntry {
    double at_s = 0;
    std::string text;  // a sentence without its full stop
};

// Bytes a node has reported for it, of which `read_bytes` has all.
struct Counted {
    std::uint64_t instance = 0;
    std::uint64_t bytes = 0;
};

struct JobRecord {
    JobId id = 0;
    Submission asked;
    std::vector<JobId> after;
    std::uint64_t dataset_bytes = 0;  // its size when last seen
    Phase phase = Phase::waiting;
    StopCause stop_cause = StopCause::none;
    std::uint32_t attempt = 0;      // of its starts; the last one
    std::optional<Allotment> held;  // from placed to the end
    std::optional<Allotment> next;  // moved: what it gets then
    std::optional<Allotment> last;  // what it had when it was stopped last
    double last_ideal = 0;          // f* with what it had when it last ran; 0: not known
    bool registered = false;        // with the allocator, by us
    double submitted_s = 0;
    double ended_s = 0;
    std::uint32_t lost = 0;  // in a row
    double read_bytes = 0;
    std::map<std::string, Counted> counted;  // by node
    std::optional<int> exit_code;            // of its last attempt
    std::optional<int> exit_signal;
    std::string end_reason;
    std::vector<LogEntry> log;

    // As decisions see it. Of `state` what is of its life is on record; the rest follows from what is above.
    JobSpec spec;
    JobState state;
    WaitsFor waits_for = WaitsFor::turn;  // where the last decision left it

    // What the placer has it down for, unless it shares another's GPUs; null: nothing.
    const Allotment* placed() const;
    double total_bytes() const;
    double remaining_bytes() const;
};

// "12 (resnet)"
std::string title(const JobRecord& job);
// Ends with the newest; the oldest are dropped.
void add_log(JobRecord& job, double at_s, std::string text);
// "8 GPUs of node a (0-7)"; with several nodes: "16 GPUs of a (0-7), b (0-7)"
std::string text_of(const Allotment& held);

}  // namespace larder::scheduler
