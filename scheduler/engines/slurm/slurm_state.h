#pragma once

// Reads what squeue and sinfo print, with queue_columns() and kNodeColumns, and the mark that Larder keeps
// in a job's AdminComment. Users cannot change an AdminComment. So the mark is where Slurm itself remembers which
// attempt of Larder a job is: no restart of slurmctld or of the agent loses one without the other.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "scheduler/live/job_record.h"
#include "scheduler/placement/placer.h"

namespace larder::scheduler::slurm {

// A queue of Larder that was lost is made anew, and numbers its jobs from 1 again.
struct AttemptId {
    std::string queue;  // the identity of its queue
    JobId job = 0;
    std::uint32_t attempt = 0;

    auto operator<=>(const AttemptId&) const = default;
};

// A mark is "larder,WORD,WORD;NOTE". job_submit.lua writes the words of the job's line #LARDER; the others are ours.
struct JobMark {
    std::map<std::string, std::string> words;  // dataset=, epochs=, ...
    std::optional<AttemptId> attempt;          // that the job is, or was before it was requeued
    std::uint32_t restarts = 0;                // Slurm's count for the job as the attempt was placed
    double grace_s = 30;
    std::optional<std::int64_t> kill_unix_s;  // the attempt was told to stop, and is killed then
    std::string note;                         // why Larder does not take the job, for people

    bool operator==(const JobMark&) const = default;
};
// nullopt: job_submit.lua has not seen the job.
std::optional<JobMark> parse_mark(std::string_view text);
std::string text_of(const JobMark& mark);

enum class JobStage : std::uint8_t { pending, running, completing, ended };

struct JobRow {
    std::string key;  // its number; of a task of an array "ARRAY_TASK"
    std::string state;
    JobStage stage = JobStage::pending;
    bool held = false;
    std::string dependency;  // the jobs that it waits for, as Slurm writes them; empty: none
    bool may_requeue = true;
    std::uint32_t nodes_wanted = 1;
    std::uint32_t gpus_per_node = 0;
    std::string gpu_type;
    bool has_mixed_gpus = false;
    std::uint32_t restarts = 0;
    int wait_status = 0;                // as of waitpid()
    std::int64_t submitted_unix_s = 0;  // or requeued last
    std::int64_t started_unix_s = 0;    // 0: it has not
    std::int64_t ended_unix_s = 0;      // 0: it has not
    std::uint32_t uid = 0;              // of its user
    std::string account;
    std::string partition;
    std::string limits_key;  // all that limits of accounts and QOS go by: jobs with equal ones are refused alike
    std::string reason;
    std::string nodes;  // that it runs on, as Slurm writes them
    std::optional<JobMark> mark;
};

// The columns have fixed widths, so that no text of a user can pretend to be another column. The wide ones have room
// for the nodes of a job that runs on very many, and take several KiB for each job.
std::string queue_columns(bool is_wide);
Result<JobRow> parse_job_row(std::string_view line, bool is_wide = false);

// True if the job waits for other jobs. Slurm itself looks at the dependencies of a held job once a minute only. So
// those on jobs of `rows` that have ended count as fulfilled before Slurm says so.
bool waits_for_others(const JobRow& row, const std::map<std::string, JobRow, std::less<>>& rows);

// Keeps the rows of the last look. A row that has not changed is not parsed again.
class JobRows {
public:
    Result<void> update(std::string_view squeue, bool is_wide = false);
    const std::map<std::string, JobRow, std::less<>>& rows() const { return rows_; }

private:
    struct Line {
        std::string text;
        std::string key;
        std::uint64_t look = 0;  // that saw it last
    };

    std::uint64_t looks_ = 0;
    std::map<std::string, Line, std::less<>> lines_;  // by the columns with its numbers
    std::map<std::string, JobRow, std::less<>> rows_;
};

enum class NodeUse : std::uint8_t { open, closed, down };  // closed: what runs there goes on

struct NodeRow {
    std::string name;
    NodeUse use = NodeUse::open;
    std::string state;  // as Slurm names it
    std::uint32_t gpus = 0;
    std::uint32_t gpus_used = 0;
    std::string gpu_type;  // empty: Slurm does not name it
    bool has_mixed_gpus = false;
    std::set<std::string, std::less<>> partitions;
};
extern const char* const kNodeColumns;
// A node that is in several partitions has one row.
Result<std::vector<NodeRow>> parse_nodes(std::string_view sinfo);

// Returns n1, n2, n5 for "n[1-2,5]". A list that is not complete gives the names before its fault.
std::vector<std::string> expand_nodes(std::string_view list);

// Returns the GPUs in a list of generic resources ("gres:gpu:a100:2", "gpu:2(S:0)"), and their type, if it has one.
// GPUs of other types than the first are not counted: Larder's nodes have one type.
struct Gpus {
    std::uint32_t count = 0;
    std::string type;
    bool is_mixed = false;
};
Gpus parse_gpus(std::string_view list);

// Reads a line of `scontrol --details --oneliner show job`: the key of a job, and the numbers of the GPUs that it has
// on each node. Empty: Slurm does not tell them.
struct JobDevices {
    std::string key;
    std::vector<GrantedDevices> devices;
};
JobDevices parse_devices(std::string_view line);

}  // namespace larder::scheduler::slurm
