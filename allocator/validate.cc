#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/state.h"
#include "base/hash.h"

namespace larder::allocator {
namespace {

using std::to_string;

std::string text(double value) {
    std::array<char, 32> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "%g", value);
    return buffer.data();
}

// Keeps the first error. A valid field costs a comparison or two; the reason of an error is found out of line.
// Fields are closures of two words, passed by value so that they stay in registers.
class Check {
public:
    void rate(auto field, double value) {
        if (!(value >= 0 && value <= kRateMax)) explain_rate(field, value, false);
    }
    void rate_or_unlimited(auto field, double value) {
        if (!(value >= 0 && (value <= kRateMax || value == kUnlimited))) explain_rate(field, value, true);
    }
    void not_negative(auto field, double value) {
        if (!(value >= 0)) explain_rate(field, value, true);
    }
    void above_zero(auto field, double value) {
        if (value == 0) wrong(field, "must be above 0");
    }
    void weight(auto field, double value) {
        if (value >= kWeightMin && value <= kWeightMax) return;
        wrong(field, text(value) + " is not from " + text(kWeightMin) + " to " + text(kWeightMax));
    }
    void below(auto field, std::uint64_t value, std::uint64_t end) {
        if (value >= end) explain_below(field, value, end);
    }
    void wrong(auto field, const std::string& why) {
        if (ok_) message_ = std::string(field()) + ": " + why;
        ok_ = false;
    }
    bool ok() const { return ok_; }
    Result<void> result() const {
        if (ok_) return {};
        return fail(ErrorCode::invalid_argument, message_);
    }

private:
    [[gnu::noinline, gnu::cold]] void explain_rate(auto field, double value, bool may_be_unlimited) {
        if (!std::isfinite(value) && !may_be_unlimited) return wrong(field, text(value) + " is not finite");
        if (std::isnan(value)) return wrong(field, "is not a number");
        if (value < 0) return wrong(field, text(value) + " is negative");
        wrong(field, text(value) + " is above " + text(kRateMax));
    }
    [[gnu::noinline, gnu::cold]] void explain_below(auto field, std::uint64_t value, std::uint64_t end) {
        wrong(field, to_string(value) + " is not below " + to_string(end));
    }

    bool ok_ = true;
    std::string message_;
};

// Returns the indices whose name may occur twice, by the names' hashes. A bit for each name tells most of them apart
// without a table of names.
std::vector<std::uint32_t> possible_duplicates(std::span<const std::uint64_t> hashes) {
    constexpr std::size_t kBitsOfName = 32;
    std::vector<std::uint64_t> once(std::bit_ceil(hashes.size() * kBitsOfName / 64 + 1)), again(once.size());
    const auto word_of = [&](std::uint64_t hash) { return hash / 64 & (once.size() - 1); };
    const auto bit_of = [](std::uint64_t hash) { return std::uint64_t{1} << hash % 64; };
    for (const std::uint64_t hash : hashes) {
        again[word_of(hash)] |= once[word_of(hash)] & bit_of(hash);
        once[word_of(hash)] |= bit_of(hash);
    }
    std::vector<std::uint32_t> found;
    for (std::uint32_t i = 0; i < hashes.size(); ++i) {
        if ((again[word_of(hashes[i])] & bit_of(hashes[i])) != 0) found.push_back(i);
    }
    return found;
}

void check_names(Check& check, std::string_view list, const auto& things) {
    const auto field = [&](std::size_t i) {
        return [list, i] { return std::string(list) + "[" + to_string(i) + "].name"; };
    };
    std::vector<std::uint64_t> hashes(things.size());
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        if (things[i].name.empty()) check.wrong(field(i), "is empty");
        hashes[i] = hash_name(things[i].name);
    }
    std::vector<std::uint32_t> found = possible_duplicates(hashes);
    std::ranges::stable_sort(found, {}, [&](std::uint32_t i) -> const std::string& { return things[i].name; });
    for (std::size_t k = 1; k < found.size(); ++k) {
        const std::string& name = things[found[k]].name;
        if (name == things[found[k - 1]].name) check.wrong(field(found[k]), "\"" + name + "\" appears twice");
    }
}

[[gnu::noinline]] void check_nodes_differ(Check& check, auto field, const auto& entries, std::vector<std::size_t>& seen,
                                          std::size_t stamp) {
    for (const auto& entry : entries) {
        if (seen[entry.node] == stamp) check.wrong(field, "node " + to_string(entry.node) + " appears twice");
        seen[entry.node] = stamp;
    }
}

// Inlined, because most lists have one node.
[[gnu::always_inline]] inline void check_node_list(Check& check, auto field, const auto& entries, std::size_t nodes,
                                                   std::vector<std::size_t>& seen, std::size_t stamp) {
    for (const auto& entry : entries) check.below(field, entry.node, nodes);
    if (entries.size() > 1 && check.ok()) check_nodes_differ(check, field, entries, seen, stamp);
}

}  // namespace

Result<void> validate(const ClusterState& state) {
    Check check;
    check.rate([] { return "remote_bytes_per_second"; }, state.remote_bytes_per_second);
    check_names(check, "nodes", state.nodes);
    check_names(check, "datasets", state.datasets);
    check_names(check, "jobs", state.jobs);

    double cache_bytes = 0;
    for (std::size_t i = 0; i < state.nodes.size(); ++i) {
        const ClusterNode& node = state.nodes[i];
        const auto field = [i](const char* name) {
            return [i, name] { return "nodes[" + to_string(i) + "]." + name; };
        };
        check.below(field("memory_bytes"), node.memory_bytes, kBytesEnd);
        check.below(field("disk_bytes"), node.disk_bytes, kBytesEnd);
        check.rate_or_unlimited(field("disk_read_bytes_per_second"), node.disk_read_bytes_per_second);
        check.rate_or_unlimited(field("nic_bytes_per_second"), node.nic_bytes_per_second);
        cache_bytes += static_cast<double>(node.memory_bytes) + static_cast<double>(node.disk_bytes);
    }
    std::vector<std::size_t> seen(state.nodes.size());
    std::size_t stamp = 0;
    double floors = 0;
    std::vector<NodeCache> held_bytes(state.nodes.size());
    const bool one_group = std::ranges::all_of(
        state.nodes, [&](const ClusterNode& node) { return node.peer_group == state.nodes.front().peer_group; });
    for (std::size_t i = 0; i < state.datasets.size(); ++i) {
        const ClusterDataset& dataset = state.datasets[i];
        const auto field = [i](const char* name) {
            return [i, name] { return "datasets[" + to_string(i) + "]." + name; };
        };
        if (dataset.size_bytes == 0) check.wrong(field("size_bytes"), "must be above 0");
        check.below(field("size_bytes"), dataset.size_bytes, kBytesEnd);
        if (dataset.quota_floor_bytes > dataset.quota_cap_bytes) {
            check.wrong(field("quota_floor_bytes"), to_string(dataset.quota_floor_bytes) +
                                                        " is above quota_cap_bytes " +
                                                        to_string(dataset.quota_cap_bytes));
        }
        // With several groups a floor holds as far as it fits.
        floors += one_group ? static_cast<double>(std::min(dataset.quota_floor_bytes, dataset.size_bytes)) : 0;
        if (floors > cache_bytes) check.wrong(field("quota_floor_bytes"), "the floors do not fit the nodes' cache");
        check_node_list(check, field("quotas"), dataset.quotas, state.nodes.size(), seen, ++stamp);
        check_node_list(check, field("cached"), dataset.cached, state.nodes.size(), seen, ++stamp);
        check_node_list(check, field("held"), dataset.held, state.nodes.size(), seen, ++stamp);
        for (const std::uint32_t node : dataset.expected_on)
            check.below(field("expected_on"), node, state.nodes.size());
        for (const NodeCache& held : dataset.held) {
            if (held.node >= state.nodes.size()) continue;
            held_bytes[held.node].memory_bytes += held.memory_bytes;
            held_bytes[held.node].disk_bytes += held.disk_bytes;
            const ClusterNode& node = state.nodes[held.node];
            const bool fits = held_bytes[held.node].memory_bytes <= node.memory_bytes &&
                              held_bytes[held.node].disk_bytes <= node.disk_bytes;
            if (!fits) check.wrong(field("held"), "the quotas held on a node do not fit its cache");
        }
        for (const auto* list : {&dataset.quotas, &dataset.cached}) {
            for (const NodeCache& entry : *list) {
                const auto name = field(list == &dataset.quotas ? "quotas" : "cached");
                check.below(name, entry.memory_bytes, kBytesEnd);
                check.below(name, entry.disk_bytes, kBytesEnd);
            }
        }
    }
    std::vector<std::uint64_t> gpus_used(state.nodes.size());
    double bandwidth_floors = 0;
    for (std::size_t i = 0; i < state.jobs.size(); ++i) {
        const ClusterJob& job = state.jobs[i];
        const auto field = [i](const char* name) { return [i, name] { return "jobs[" + to_string(i) + "]." + name; }; };
        check.below(field("dataset"), job.dataset, state.datasets.size());
        check.rate(field("ideal_bytes_per_second"), job.ideal_bytes_per_second);
        check.above_zero(field("ideal_bytes_per_second"), job.ideal_bytes_per_second);
        check.weight(field("weight"), job.weight);
        check.not_negative(field("remaining_epochs"), job.remaining_epochs);
        if (job.unread_cached_bytes > job.unread_bytes) {
            check.wrong(field("unread_cached_bytes"),
                        to_string(job.unread_cached_bytes) + " is above unread_bytes " + to_string(job.unread_bytes));
        }
        check.rate(field("bandwidth_floor_bytes_per_second"), job.bandwidth_floor_bytes_per_second);
        check.rate_or_unlimited(field("bandwidth_cap_bytes_per_second"), job.bandwidth_cap_bytes_per_second);
        if (job.bandwidth_floor_bytes_per_second > job.bandwidth_cap_bytes_per_second) {
            check.wrong(field("bandwidth_floor_bytes_per_second"), "is above bandwidth_cap_bytes_per_second");
        }
        bandwidth_floors += job.bandwidth_floor_bytes_per_second;
        if (bandwidth_floors > state.remote_bytes_per_second) {
            check.wrong(field("bandwidth_floor_bytes_per_second"), "the floors do not fit remote_bytes_per_second");
        }
        check_node_list(check, field("placement"), job.placement, state.nodes.size(), seen, ++stamp);
        check_node_list(check, field("last_placement"), job.last_placement, state.nodes.size(), seen, ++stamp);
        if (!job.placement.empty() && !job.last_placement.empty()) {
            check.wrong(field("last_placement"), "is only for waiting jobs, but this job has a placement");
        }
        if (!(job.time_share > 0 && job.time_share <= 1))
            check.wrong(field("time_share"), "must be above 0, at most 1");
        if (!check.ok()) break;
        for (const GpuShare& share : job.placement) {
            gpus_used[share.node] += share.gpus;
            if (gpus_used[share.node] > state.nodes[share.node].gpus) {
                check.wrong(field("placement"), "node " + to_string(share.node) + " has only " +
                                                    to_string(state.nodes[share.node].gpus) + " GPUs");
            }
        }
    }
    return check.result();
}

}  // namespace larder::allocator
