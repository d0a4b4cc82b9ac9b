#include "scheduler/engines/slurm/slurm_state.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

namespace larder::scheduler::slurm {
namespace {

// The columns of squeue, and the widths of those of squeue and sinfo.
constexpr std::array<std::string_view, 24> kQueueNames{
    "JobID",      "ArrayJobID",    "ArrayTaskID", "State",      "PriorityLong", "NumNodes",
    "RestartCnt", "Requeue",       "exit_code",   "SubmitTime", "StartTime",    "EndTime",
    "UserID",     "Account",       "QOS",         "Partition",  "TimeLimit",    "NumCPUs",
    "MinMemory",  "tres-per-node", "Dependency",  "Reason",     "NodeList",     "admin_comment"};
using QueueWidths = std::array<std::size_t, kQueueNames.size()>;
constexpr QueueWidths kQueueWidths{12, 12, 12, 16, 12, 8, 8,  4,  8,  12, 12,  12,
                                   12, 65, 33, 65, 16, 8, 12, 65, 97, 48, 257, 385};
constexpr QueueWidths kWideQueueWidths{12, 12, 12, 16, 12, 8, 8,  4,  8,  12, 12,   12,
                                       12, 65, 33, 65, 16, 8, 12, 65, 97, 48, 4097, 385};
constexpr std::array<std::size_t, 5> kNodeWidths{65, 24, 257, 257, 65};

constexpr const QueueWidths& queue_widths(bool is_wide) {
    return is_wide ? kWideQueueWidths : kQueueWidths;
}

std::string_view trim(std::string_view text) {
    const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
    text.remove_prefix(begin);
    return text.substr(0, text.find_last_not_of(' ') + 1);
}

// Cuts a line at the widths. The last column may be shorter than its width.
template <std::size_t count>
std::optional<std::array<std::string_view, count>> columns_of(std::string_view line,
                                                              const std::array<std::size_t, count>& widths) {
    std::array<std::string_view, count> columns;
    for (std::size_t i = 0; i < count; ++i) {
        if (line.size() < widths[i] && i + 1 < count) return std::nullopt;
        const std::size_t width = std::min(line.size(), widths[i]);
        columns[i] = trim(line.substr(0, width));
        if (columns[i] == "(null)" || columns[i] == "N/A") columns[i] = {};
        line.remove_prefix(width);
    }
    return columns;
}

template <typename Number>
Number number_of(std::string_view text, Number otherwise = {}) {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc{} && end == text.data() + text.size() ? number : otherwise;
}

std::string_view next_part(std::string_view& text, char separator) {
    const std::size_t at = std::min(text.find(separator), text.size());
    const std::string_view part = text.substr(0, at);
    text.remove_prefix(std::min(text.size(), at + 1));
    return part;
}

JobStage stage_of(std::string_view state) {
    static constexpr std::array<std::string_view, 5> kPending{"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD",
                                                              "SPECIAL_EXIT"};
    static constexpr std::array<std::string_view, 9> kEnded{"BOOT_FAIL", "CANCELLED",     "COMPLETED",
                                                            "DEADLINE",  "FAILED",        "NODE_FAIL",
                                                            "PREEMPTED", "OUT_OF_MEMORY", "TIMEOUT"};
    if (std::ranges::find(kPending, state) != kPending.end()) return JobStage::pending;
    if (std::ranges::find(kEnded, state) != kEnded.end()) return JobStage::ended;
    return state == "COMPLETING" ? JobStage::completing : JobStage::running;
}

NodeUse use_of(std::string_view state) {
    const auto begins = [&](std::string_view word) { return state.starts_with(word); };
    // Slurm marks a node that does not answer by an asterisk.
    if (state.ends_with('*')) return NodeUse::down;
    if (begins("down") || begins("unk") || begins("fail") || begins("power") || begins("reboot") || begins("future")) {
        return NodeUse::down;
    }
    if (begins("idle") || begins("mixed") || begins("alloc") || begins("compl") || begins("planned")) {
        return NodeUse::open;
    }
    return NodeUse::closed;  // drained, draining, reserved, in maintenance, blocked
}

std::optional<AttemptId> attempt_of(std::string_view text) {
    const std::string_view job = next_part(text, '.');
    const std::string_view attempt = next_part(text, '.');
    AttemptId id{
        .queue = std::string(text), .job = number_of<JobId>(job), .attempt = number_of<std::uint32_t>(attempt)};
    if (id.queue.empty() || id.job == 0 || id.attempt == 0) return std::nullopt;
    return id;
}

}  // namespace

std::optional<JobMark> parse_mark(std::string_view text) {
    std::string_view words = next_part(text, ';');
    if (next_part(words, ',') != "larder") return std::nullopt;
    JobMark mark;
    mark.note = text;
    while (!words.empty()) {
        std::string_view word = next_part(words, ',');
        const std::string_view key = next_part(word, '=');
        if (key == "attempt") {
            mark.attempt = attempt_of(word);
        } else if (key == "restarts") {
            mark.restarts = number_of<std::uint32_t>(word);
        } else if (key == "stop-grace") {
            mark.grace_s = number_of<double>(word, mark.grace_s);
        } else if (key == "kill") {
            mark.kill_unix_s = number_of<std::int64_t>(word);
        } else if (!key.empty()) {
            mark.words[std::string(key)] = word;
        }
    }
    return mark;
}

std::string text_of(const JobMark& mark) {
    std::string text = "larder";
    const auto add = [&](const std::string& key, const std::string& value) { text += "," + key + "=" + value; };
    // Before the words of the user: what is too long for the column is cut off.
    if (mark.attempt) {
        std::array<char, 32> grace{};
        const auto end = std::to_chars(grace.data(), grace.data() + grace.size(), mark.grace_s).ptr;
        add("attempt", std::to_string(mark.attempt->job) + "." + std::to_string(mark.attempt->attempt) + "." +
                           mark.attempt->queue);
        add("restarts", std::to_string(mark.restarts));
        add("stop-grace", std::string(grace.data(), end));
        if (mark.kill_unix_s) add("kill", std::to_string(*mark.kill_unix_s));
    }
    for (const auto& [key, value] : mark.words) add(key, value);
    if (!mark.note.empty()) text += ";" + mark.note;
    return text;
}

std::string queue_columns(bool is_wide) {
    std::string columns;
    for (std::size_t i = 0; i < kQueueNames.size(); ++i) {
        columns +=
            (i == 0 ? "" : ",") + std::string(kQueueNames.at(i)) + ":" + std::to_string(queue_widths(is_wide).at(i));
    }
    return columns;
}

Result<JobRow> parse_job_row(std::string_view line, bool is_wide) {
    const auto columns = columns_of(line, queue_widths(is_wide));
    if (!columns) return fail(ErrorCode::protocol, "squeue printed a line that is too short: " + std::string(line));
    const auto& [id, array, task, state, priority, nodes, restarts, requeue, status, submitted, started, ended, uid,
                 account, qos, partition, time, cpus, memory, tres, dependency, reason, on, mark] = *columns;
    JobRow row;
    row.key = task.empty() ? std::string(id) : std::string(array) + "_" + std::string(task);
    row.state = state;
    row.stage = stage_of(state);
    row.held = priority == "0";
    row.dependency = dependency;
    row.may_requeue = requeue != "0";
    row.nodes_wanted = number_of<std::uint32_t>(nodes.substr(0, nodes.find('-')), 1);
    row.restarts = number_of<std::uint32_t>(restarts);
    row.wait_status = number_of<int>(status);
    row.submitted_unix_s = number_of<std::int64_t>(submitted);
    // Before these have happened, Slurm writes when it expects them.
    if (row.stage != JobStage::pending) row.started_unix_s = number_of<std::int64_t>(started);
    if (row.stage == JobStage::ended) row.ended_unix_s = number_of<std::int64_t>(ended);
    row.uid = number_of<std::uint32_t>(uid);
    row.account = account;
    row.partition = partition;
    const Gpus gpus = parse_gpus(tres);
    row.gpus_per_node = gpus.count;
    row.gpu_type = gpus.type;
    row.has_mixed_gpus = gpus.is_mixed;
    for (const std::string_view part : {uid, account, qos, partition, time, cpus, memory, nodes, tres}) {
        row.limits_key.append(part).push_back(' ');
    }
    row.reason = reason;
    row.nodes = on;
    row.mark = parse_mark(mark);
    if (row.key.empty()) return fail(ErrorCode::protocol, "squeue printed a job without a number");
    return row;
}

bool waits_for_others(const JobRow& row, const std::map<std::string, JobRow, std::less<>>& rows) {
    // Any one of several jobs is enough, or the end of the text is cut off: only Slurm knows.
    if (row.dependency.find('?') != std::string::npos) return true;
    if (!row.dependency.empty() && row.dependency.back() != ')') return true;
    std::string_view rest = row.dependency;
    while (!rest.empty()) {
        std::string_view part = next_part(rest, ',');
        const std::string_view kind = next_part(part, ':');
        const std::string_view key = next_part(part, '(');
        if (part != "unfulfilled)" || (kind != "afterok" && kind != "afterany")) return true;
        const auto other = rows.find(key);
        if (other == rows.end() || other->second.stage != JobStage::ended) return true;
        if (kind == "afterok" && other->second.state != "COMPLETED") return true;
    }
    return false;
}

Result<void> JobRows::update(std::string_view squeue, bool is_wide) {
    ++looks_;
    while (!squeue.empty()) {
        const std::string_view text = next_part(squeue, '\n');
        if (text.empty()) continue;
        const std::string_view numbers = text.substr(0, kQueueWidths[0] + kQueueWidths[1] + kQueueWidths[2]);
        const auto known = lines_.find(numbers);
        if (known != lines_.end() && known->second.text == text) {
            known->second.look = looks_;
            continue;
        }
        auto row = parse_job_row(text, is_wide);
        if (!row) return std::unexpected(row.error());
        lines_[std::string(numbers)] = {.text = std::string(text), .key = row->key, .look = looks_};
        const std::string key = row->key;
        rows_.insert_or_assign(key, std::move(*row));
    }
    std::set<std::string> dropped;
    for (auto line = lines_.begin(); line != lines_.end();) {
        const bool is_here = line->second.look == looks_;
        if (!is_here) dropped.insert(line->second.key);
        line = is_here ? std::next(line) : lines_.erase(line);
    }
    if (dropped.empty()) return {};
    // A task of an array gets a number of its own when it leaves the array's record, but keeps its key.
    for (const auto& [numbers, line] : lines_) dropped.erase(line.key);
    for (const std::string& key : dropped) rows_.erase(key);
    return {};
}

const char* const kNodeColumns = "NodeList:65,StateLong:24,Gres:257,GresUsed:257,PartitionName:65";

Result<std::vector<NodeRow>> parse_nodes(std::string_view sinfo) {
    std::map<std::string, NodeRow> nodes;
    while (!sinfo.empty()) {
        const std::string_view line = next_part(sinfo, '\n');
        if (line.empty()) continue;
        const auto columns = columns_of(line, kNodeWidths);
        if (!columns) return fail(ErrorCode::protocol, "sinfo printed a line that is too short: " + std::string(line));
        const auto& [name, state, gpus, used, partition] = *columns;
        Gpus has = parse_gpus(gpus);
        NodeRow& node = nodes[std::string(name)];
        node.name = name;
        node.use = use_of(state);
        node.state = state;
        node.gpus = has.count;
        node.has_mixed_gpus = has.is_mixed;
        node.gpus_used = parse_gpus(used).count;
        node.gpu_type = std::move(has.type);
        node.partitions.emplace(partition);
    }
    std::vector<NodeRow> rows;
    rows.reserve(nodes.size());
    for (auto& [_, node] : nodes) rows.push_back(std::move(node));
    return rows;
}

std::vector<std::string> expand_nodes(std::string_view list) {
    std::vector<std::string> names;
    while (!list.empty()) {
        const std::size_t open = list.find_first_of("[,");
        if (open == std::string_view::npos || list[open] == ',') {
            const std::string_view name = next_part(list, ',');
            if (!name.empty()) names.emplace_back(name);
            continue;
        }
        const std::string prefix(list.substr(0, open));
        const std::size_t close = list.find(']', open);
        if (close == std::string_view::npos) return names;
        std::string_view ranges = list.substr(open + 1, close - open - 1);
        list.remove_prefix(close + 1);
        const std::string suffix(next_part(list, ','));
        while (!ranges.empty()) {
            std::string_view range = next_part(ranges, ',');
            const std::string_view first = next_part(range, '-');
            const auto from = number_of<std::uint32_t>(first);
            const auto to = range.empty() ? from : number_of<std::uint32_t>(range);
            for (std::uint32_t i = from; i <= to && i - from < 100'000; ++i) {
                std::string number = std::to_string(i);
                if (number.size() < first.size()) number.insert(0, first.size() - number.size(), '0');
                for (const std::string& rest : suffix.empty() ? std::vector<std::string>{""} : expand_nodes(suffix)) {
                    names.push_back(prefix + number + rest);
                }
            }
        }
    }
    return names;
}

namespace {

// Returns 0, 1, 5 for "gpu:a100:3(IDX:0-1,5)".
std::vector<std::string> gpu_numbers(std::string_view gres) {
    const std::size_t at = gres.find("gpu");
    const std::size_t list = at == std::string_view::npos ? at : gres.find("(IDX:", at);
    if (list == std::string_view::npos) return {};
    const std::string_view numbers = gres.substr(list + 5, gres.find(')', list) - list - 5);
    std::vector<std::string> names = expand_nodes("[" + std::string(numbers) + "]");
    if (names.size() > kGpusPerNodeMax) names.clear();
    return names;
}

}  // namespace

JobDevices parse_devices(std::string_view line) {
    JobDevices job;
    std::string number;
    std::string array;
    std::string task;
    std::vector<std::string> nodes;
    while (!line.empty()) {
        std::string_view word = next_part(line, ' ');
        const std::string_view name = next_part(word, '=');
        if (name == "JobId" && number.empty()) number = word;
        if (name == "ArrayJobId" && array.empty()) array = word;
        if (name == "ArrayTaskId" && task.empty()) task = word;
        if (name == "Nodes") nodes = expand_nodes(word);
        if (name != "GRES") continue;
        const std::vector<std::string> numbers = gpu_numbers(word);
        for (const std::string& node : nodes) {
            if (!numbers.empty()) job.devices.push_back({.node = node, .devices = numbers});
        }
        nodes.clear();
    }
    job.key = array.empty() || task.empty() ? number : array + "_" + task;
    return job;
}

Gpus parse_gpus(std::string_view list) {
    Gpus gpus;
    bool is_first = true;
    while (!list.empty()) {
        std::string_view one = next_part(list, ',');
        one = one.substr(0, one.find('('));
        if (one.starts_with("gres:") || one.starts_with("gres/")) one.remove_prefix(5);
        if (next_part(one, ':') != "gpu") continue;
        std::string_view count = next_part(one, ':');
        std::string_view type;
        if (!count.empty() && count.find_first_not_of("0123456789") != std::string_view::npos) {
            type = count;
            count = one;
        }
        if (std::exchange(is_first, false)) gpus.type = type;
        if (type != gpus.type) {
            gpus.is_mixed = true;
            continue;
        }
        gpus.count += count.empty() ? 1 : number_of<std::uint32_t>(count);
    }
    return gpus;
}

}  // namespace larder::scheduler::slurm
