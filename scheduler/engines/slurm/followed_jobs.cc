#include "scheduler/engines/slurm/followed_jobs.h"

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <ranges>
#include <set>
#include <sstream>
#include <utility>

#include "allocator/protocol/codec.h"
#include "base/nearest_name.h"
#include "base/server/http.h"
#include "base/server/json_reader.h"
#include "base/server/json_text.h"
#include "base/server/percent_encoding.h"
#include "base/units.h"
#include "scheduler/engines/slurm/answer_fields.h"

namespace larder::scheduler::slurm {
namespace json = boost::json;
namespace {

std::uint64_t tiers_in(const json::object& object, std::string_view key) {
    const json::value* const value = object.if_contains(key);
    if (value == nullptr || !value->is_object()) return 0;
    return bytes_in(value->get_object(), "memory_bytes") + bytes_in(value->get_object(), "disk_bytes");
}

const json::object* find_named(const std::vector<const json::object*>& objects, std::string_view name) {
    const auto found =
        std::ranges::find_if(objects, [&](const json::object* object) { return text_in(*object, "name") == name; });
    return found == objects.end() ? nullptr : *found;
}

std::string job_target(const std::string& job, std::string_view rest = {}) {
    return "/v1/jobs/" + percent_encode(job_name(job)) + std::string(rest);
}

Result<void> check_dataset(const std::vector<const json::object*>& datasets, const std::string& name) {
    if (find_named(datasets, name) != nullptr) return {};
    std::vector<std::string> names;
    names.reserve(datasets.size());
    for (const json::object* dataset : datasets) names.push_back(text_in(*dataset, "name"));
    const auto nearest = nearest_name(name, names);
    return fail(ErrorCode::not_found,
                "no node has a dataset \"" + name + "\"" +
                    (nearest ? "; did you mean \"" + *nearest + "\"?" : ": `scontrol show bbstat` lists the datasets"));
}

}  // namespace

std::string job_name(std::string_view job) {
    return "slurm-" + std::string(job);
}

std::optional<std::uint64_t> count_gpus(std::string_view list) {
    constexpr std::uint64_t kNumberMax = 1 << 16;
    const auto take_number = [&list]() -> std::optional<std::uint64_t> {
        std::uint64_t number = 0;
        const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), number);
        if (error != std::errc{} || number > kNumberMax) return std::nullopt;
        list.remove_prefix(static_cast<std::size_t>(end - list.data()));
        return number;
    };
    std::uint64_t count = 0;
    while (!list.empty()) {
        const auto first = take_number();
        if (!first) return std::nullopt;
        std::uint64_t last = *first;
        if (list.starts_with('-')) {
            list.remove_prefix(1);
            const auto end = take_number();
            if (!end || *end < *first) return std::nullopt;
            last = *end;
        }
        count += last - *first + 1;
        if (list.empty()) break;
        if (!list.starts_with(',') || list.size() == 1) return std::nullopt;
        list.remove_prefix(1);
    }
    return count;
}

std::set<std::string> unended_jobs(std::string_view squeue) {
    static constexpr std::array<std::string_view, 9> kEndedStates{"BOOT_FAIL", "CANCELLED",     "COMPLETED",
                                                                  "DEADLINE",  "FAILED",        "NODE_FAIL",
                                                                  "PREEMPTED", "OUT_OF_MEMORY", "TIMEOUT"};
    std::set<std::string> jobs;
    std::istringstream lines{std::string(squeue)};
    std::string job;
    std::string state;
    while (lines >> job >> state) {
        if (std::ranges::find(kEndedStates, state) == kEndedStates.end()) jobs.insert(job);
    }
    return jobs;
}

std::string scheduled_nodes(std::string_view squeue, std::string_view job) {
    std::istringstream lines{std::string(squeue)};
    std::string number;
    std::string nodes;
    while (lines >> number >> nodes) {
        if (number == job) return nodes.starts_with('(') ? "" : nodes;  // "(null)"
    }
    return "";
}

// An answer's object, which its fields point into.
struct FollowedJobs::Answer {
    json::object object;
};

FollowedJobs::FollowedJobs(FollowOptions options) : options_(std::move(options)), client_(options_.endpoint) {}

Result<FollowedJobs::Answer> FollowedJobs::ask(std::string_view method, const std::string& target,
                                               std::string_view body) {
    auto http = http_client_options(options_.credentials);
    if (!http) return std::unexpected(http.error());
    http->timeout_ms = options_.timeout_ms;
    const auto response = client_.request(method, target, body, *http);
    if (!response) {
        return fail(response.error().code,
                    "no allocator answers at " + options_.endpoint + ": " + response.error().message);
    }
    if (response->status >= 400) return std::unexpected(error_of_response(*response));
    auto object = parse_json_object(response->body, "the allocator's answer");
    if (!object) return std::unexpected(object.error());
    return Answer{std::move(*object)};
}

Result<void> FollowedJobs::check(const JobRequest& request) {
    const auto datasets = ask("GET", "/v1/datasets");
    if (!datasets) return std::unexpected(datasets.error());
    const auto rows = objects_in(datasets->object, "datasets");
    if (auto known = check_dataset(rows, request.dataset); !known) return known;
    if (request.bandwidth_bytes_per_second > 0) {
        const auto status = ask("GET", "/v1/status");
        if (!status) return std::unexpected(status.error());
        const double remote = number_in(status->object, "remote_bytes_per_second");
        if (request.bandwidth_bytes_per_second > remote) {
            return fail(ErrorCode::no_space,
                        "bandwidth=" + format_bytes_per_second(request.bandwidth_bytes_per_second) +
                            " is more than the remote gives to all jobs: " + format_bytes_per_second(remote));
        }
    }
    if (request.cache_bytes == 0 && request.gpus == 0) return {};
    const auto nodes = ask("GET", "/v1/nodes");
    if (!nodes) return std::unexpected(nodes.error());
    std::set<std::string> having;
    for (const json::object* node : objects_in(*find_named(rows, request.dataset), "nodes")) {
        having.insert(text_in(*node, "name"));
    }
    std::uint64_t capacity = 0;
    std::uint64_t gpus = 0;
    for (const json::object* node : objects_in(nodes->object, "nodes")) {
        if (having.contains(text_in(*node, "name"))) capacity += tiers_in(*node, "capacity");
        gpus += bytes_in(*node, "gpus");
    }
    if (request.cache_bytes > capacity) {
        const UnitFamily family = unit_family_of(request.cache_bytes);
        return fail(ErrorCode::no_space, "cache=" + format_bytes(request.cache_bytes, family) +
                                             " is more than the nodes with dataset \"" + request.dataset +
                                             "\" have: " + format_bytes(capacity, family));
    }
    // Nodes need not say how many GPUs they have.
    if (gpus > 0 && request.gpus > gpus) {
        return fail(ErrorCode::no_space,
                    "gpus=" + std::to_string(request.gpus) + " is more than the nodes have: " + std::to_string(gpus));
    }
    return {};
}

Result<void> FollowedJobs::begin(const std::string& job, std::uint32_t user, const JobRequest& request) {
    if (auto released = release(job); !released) return released;
    const allocator::JobRegistration spec{.name = job_name(job), .user = user, .dataset = request.dataset};
    const auto registered = ask("POST", "/v1/jobs", json_text(allocator::to_json(spec)));
    if (registered) return {};
    // The dataset was known when the job was submitted, so its nodes may come back.
    if (registered.error().code != ErrorCode::not_found) return std::unexpected(registered.error());
    return fail(ErrorCode::unavailable, registered.error().message);
}

Result<void> FollowedJobs::reserve(const std::string& job, const JobRequest& request,
                                   const std::vector<std::string>& expected_on) {
    if (request.cache_bytes == 0 && request.bandwidth_bytes_per_second == 0) return {};
    json::object body{{"cache_bytes", request.cache_bytes},
                      {"bandwidth_floor_bytes_per_second", request.bandwidth_bytes_per_second}};
    if (!expected_on.empty()) {
        json::array nodes;
        for (const std::string& node : expected_on | std::views::take(allocator::kExpectedNodesMax)) {
            nodes.emplace_back(node);
        }
        body["nodes"] = std::move(nodes);
    }
    const auto reserved = ask("PUT", job_target(job, "/reservation"), json_text(body));
    if (!reserved) return std::unexpected(reserved.error());
    return {};
}

Result<bool> FollowedJobs::is_staged(const std::string& job) {
    const auto jobs = ask("GET", "/v1/jobs");
    if (!jobs) return std::unexpected(jobs.error());
    const json::object* const row = find_named(objects_in(jobs->object, "jobs"), job_name(job));
    if (row == nullptr) {
        return fail(ErrorCode::not_found, "job " + job_name(job) + " is no longer registered with the allocator");
    }
    return !row->contains("cache_bytes") || flag_in(*row, "staged");
}

Result<void> FollowedJobs::release(const std::string& job) {
    const auto released = ask("DELETE", job_target(job));
    if (released || released.error().code == ErrorCode::not_found) return {};
    return std::unexpected(released.error());
}

Result<std::vector<std::string>> FollowedJobs::registered() {
    const auto jobs = ask("GET", "/v1/jobs");
    if (!jobs) return std::unexpected(jobs.error());
    const std::string prefix = job_name("");
    std::vector<std::string> numbers;
    for (const json::object* row : objects_in(jobs->object, "jobs")) {
        const std::string name = text_in(*row, "name");
        if (name.starts_with(prefix) && flag_in(*row, "registered")) numbers.push_back(name.substr(prefix.size()));
    }
    return numbers;
}

Result<void> FollowedJobs::place(const std::string& job, const std::string& node, std::optional<std::uint64_t> gpus) {
    json::object body{{"node", node}, {"runs", gpus.has_value()}};
    if (gpus) body["gpus"] = *gpus;
    const auto placed = ask("POST", job_target(job, "/placement"), json_text(body));
    if (placed || placed.error().code == ErrorCode::not_found) return {};
    return std::unexpected(placed.error());
}

Result<std::string> FollowedJobs::pools_json() {
    const auto nodes = ask("GET", "/v1/nodes");
    if (!nodes) return std::unexpected(nodes.error());
    std::uint64_t capacity = 0;
    std::uint64_t used = 0;
    for (const json::object* node : objects_in(nodes->object, "nodes")) {
        if (!flag_in(*node, "alive")) continue;
        capacity += tiers_in(*node, "capacity");
        used += tiers_in(*node, "used");
    }
    const json::object pool{
        {"id", "larder"}, {"quantity", capacity}, {"free", capacity - std::min(capacity, used)}, {"granularity", 1}};
    return json_text(json::object{{"pools", json::array{pool}}});
}

Result<FollowedJobs::Status> FollowedJobs::status() {
    const auto summary = ask("GET", "/v1/status");
    if (!summary) return std::unexpected(summary.error());
    const auto datasets = ask("GET", "/v1/datasets");
    if (!datasets) return std::unexpected(datasets.error());
    const auto jobs = ask("GET", "/v1/jobs");
    if (!jobs) return std::unexpected(jobs.error());
    Status status{.remote_bytes_per_second = number_in(summary->object, "remote_bytes_per_second")};
    for (const json::object* row : objects_in(datasets->object, "datasets")) {
        status.datasets.push_back({.name = text_in(*row, "name"),
                                   .size_bytes = bytes_in(*row, "size_bytes"),
                                   .cached_bytes = bytes_in(*row, "cached_bytes"),
                                   .quota_bytes = bytes_in(*row, "quota_bytes"),
                                   .granted_bytes_per_second = number_in(*row, "granted_bytes_per_second"),
                                   .jobs = names_in(*row, "jobs")});
    }
    for (const json::object* row : objects_in(jobs->object, "jobs")) {
        const bool runs = flag_in(*row, "running");
        const bool has_reservation = row->contains("cache_bytes");
        const char* const before = !has_reservation ? "registered" : flag_in(*row, "staged") ? "staged" : "staging";
        status.jobs.push_back({.name = text_in(*row, "name"),
                               .state = runs ? "runs" : before,
                               .dataset = text_in(*row, "dataset"),
                               .cache_bytes = bytes_in(*row, "cache_bytes"),
                               .nodes = names_in(*row, "nodes"),
                               .gpus = bytes_in(*row, "ranks"),
                               .granted_bytes_per_second = number_in(*row, "bandwidth_bytes_per_second")});
    }
    return status;
}

}  // namespace larder::scheduler::slurm
