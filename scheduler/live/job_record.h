#pragma once

// Everything known about a submitted job, from its submission until it is dropped from the history. The GPUs it holds
// are given by node names, so that a record survives a change of the configuration.

#include <boost/container/flat_map.hpp>

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
    placed,    // has GPUs, but waits until their former jobs are gone
    starting,  // the start is put on record first, then the engine is told
    running,
    stopping,  // asked to end; holds its GPUs until it has ended
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
// True if a process of the job may exist.
inline bool is_with_engine(Phase phase) {
    return phase == Phase::starting || phase == Phase::running || phase == Phase::stopping;
}

enum class StopCause : std::uint8_t { none, preempted, moved, cancelled, start_timeout, node_removed };
std::string_view name(StopCause cause);

struct NamedGpus {
    std::string node;
    std::uint64_t gpus = 0;  // bit i: GPU i

    bool operator==(const NamedGpus&) const = default;
};

// A tenant's cell by which GPUs are held: the cell of that level that contains this GPU of the node.
struct NamedCell {
    std::string node;
    std::uint32_t gpu = 0;
    std::string level;

    bool operator==(const NamedCell&) const = default;
};

// The devices that a cluster manager has granted on one node, in its own names: indices, UUIDs.
struct GrantedDevices {
    std::string node;
    std::vector<std::string> devices;

    bool operator==(const GrantedDevices&) const = default;
};

struct Allotment {
    std::vector<NamedGpus> gpus;
    std::uint32_t count = 0;
    std::string gpu_type;
    bool opportunistic = false;
    std::optional<JobId> packed_with;
    std::vector<NamedCell> cells;  // if the cluster has cells: to get the same ones after a restart

    bool operator==(const Allotment&) const = default;
};

// Returns what `from` has on nodes that `to` lacks.
std::vector<NamedGpus> only_in(const Allotment& from, const Allotment& to);
// True if `to` has all nodes of `from`, with the same GPUs there.
bool includes(const Allotment& to, const Allotment& from);
// True if an attempt that has `from` can go on with `to`: nodes were added, or removed, or neither. The first node,
// which all tasks know by name, stays.
bool can_resize(const Allotment& from, const Allotment& to);

// An entry of the job's decision log.
struct LogEntry {
    double at_s = 0;
    std::string text;  // a sentence without its full stop
};

// Bytes that a node has reported for the job, all included in `read_bytes`.
struct CountedBytes {
    std::uint64_t instance = 0;
    std::uint64_t bytes = 0;
};

// The last command that the engine was given for a job.
struct SentToEngine {
    std::uint32_t attempt = 0;
    std::uint32_t resize = 0;
    std::uint32_t declared_for = 0;  // GPUs for which the allocator was told its rate; 0: unknown
    bool stop = false;
};

struct JobRecord {
    JobId id = 0;
    Submission asked;
    std::vector<JobId> after;
    std::uint64_t dataset_bytes = 0;  // its size when last seen
    Phase phase = Phase::waiting;
    StopCause stop_cause = StopCause::none;
    std::uint32_t attempt = 0;      // number of the last attempt; 0: none
    std::optional<Allotment> held;  // from placed to the end
    // If it moves: the GPUs it moves to. Of a running job: those that its attempt is to have instead of `held`, as the
    // engine resizes it. One of the two then has all nodes of the other, with the same GPUs there.
    std::optional<Allotment> next;
    std::optional<Allotment> last;  // what it held when it was last stopped
    // The last attempt's, if the cluster manager tells them. GPU numbers of `held` are then Larder's own.
    std::vector<GrantedDevices> devices;
    bool is_resizable = false;  // the engine could resize its attempt when it last told
    std::uint32_t resizes = 0;  // number of the attempt's last resize; 0: none
    // True from the begin of that resize until its answer. Before, a resize waits until others have left `next`.
    bool is_resizing = false;
    // An earlier resize was told to the engine and not answered: the attempt may have fewer nodes than `held`.
    bool may_lack_nodes = false;
    double resize_s = 0;                // when that resize began
    std::uint32_t refused_growths = 0;  // in a row: refused, or not answered in time
    double grow_not_before_s = 0;       // after that
    double last_ideal = 0;              // f* with the GPUs of its last run; 0: unknown
    bool registered = false;            // by us, with the allocator
    double submitted_s = 0;
    double ended_s = 0;
    std::uint32_t lost = 0;      // consecutive lost attempts
    std::string pending_for;     // why the cluster manager has not begun it, or did not last time
    std::uint32_t rejected = 0;  // times in a row that it was rejected or did not begin in time
    double not_before_s = 0;     // after that: when it may be placed again
    // Until then it is not placed, as the cluster manager would reject it along with another job. Not on record.
    double held_back_until_s = 0;
    double read_bytes = 0;
    boost::container::flat_map<std::string, CountedBytes> counted;  // by node
    std::optional<int> exit_code;                                   // of its last attempt
    std::optional<int> exit_signal;
    std::string end_reason;
    std::vector<LogEntry> log;

    // The job as decisions see it. Only the fields of `state` that span the job's life are on record; the others follow
    // from the fields above.
    JobSpec spec;
    JobState state;
    SentToEngine sent;                    // not on record
    std::vector<bool> types_for_shape;    // GPU types with a place for its GangShape; empty: not known yet
    WaitsFor waits_for = WaitsFor::turn;  // according to the last decision

    // Returns the allotment that the placer has for the job, unless the job shares another job's GPUs; null: none.
    const Allotment* placed() const;
    // Returns all GPUs that processes of the attempt may use: while it is resized, the larger of the two allotments.
    // Only for a job with `held`.
    const Allotment& in_use() const;
    double total_bytes() const;
    double remaining_bytes() const;
};

// For example "12 (resnet)".
std::string title(const JobRecord& job);
// Appends an entry. If the log is full, the oldest entry is dropped.
void add_log(JobRecord& job, double at_s, std::string text);
// For example "16 GPUs of a (0-7), b (0-7)".
std::string text_of(const Allotment& held);

}  // namespace larder::scheduler
