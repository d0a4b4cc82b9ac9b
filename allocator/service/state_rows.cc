#include "allocator/service/state_rows.h"

#include <boost/json.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "allocator/protocol/codec.h"
#include "allocator/state.h"
#include "base/server/json_reader.h"
#include "base/server/json_text.h"

namespace larder::allocator {
namespace json = boost::json;
namespace {

constexpr std::size_t kNameBytesMax = 255;

json::object json_of(const RegistrationOwner& owner) {
    return owner.uid ? json::object{{"uid", *owner.uid}} : json::object{{"token", owner.token}};
}

json::object json_of(const JobRegistration& spec) {
    json::object object{{"name", spec.name},
                        {"weight", spec.weight},
                        {"bandwidth_floor_bytes_per_second", spec.bandwidth_floor_bytes_per_second}};
    if (spec.ideal_bytes_per_second) object["ideal_bytes_per_second"] = *spec.ideal_bytes_per_second;
    if (std::isfinite(spec.epochs)) object["epochs"] = spec.epochs;
    if (std::isfinite(spec.bandwidth_cap_bytes_per_second)) {
        object["bandwidth_cap_bytes_per_second"] = spec.bandwidth_cap_bytes_per_second;
    }
    if (spec.user) object["user"] = *spec.user;
    if (spec.owner) object["owner"] = json_of(*spec.owner);
    if (spec.by_scheduler) object["by_scheduler"] = true;
    if (!spec.dataset.empty()) object["dataset"] = spec.dataset;
    if (spec.cache_bytes > 0) object["cache_bytes"] = spec.cache_bytes;
    if (!spec.runs_on.empty()) {
        json::object nodes;
        for (const auto& [node, gpus] : spec.runs_on) nodes[node] = gpus;
        object["runs_on"] = std::move(nodes);
    }
    if (!spec.expected_on.empty()) {
        json::array nodes;
        for (const std::string& node : spec.expected_on) nodes.emplace_back(node);
        object["expected_on"] = std::move(nodes);
    }
    return object;
}

json::object json_of(const MeasuredIdeal& ideal) {
    json::object object{{"bits", std::bit_cast<std::uint64_t>(ideal.bytes_per_second)}};
    if (ideal.user) object["user"] = *ideal.user;
    return object;
}

json::array json_of(const std::vector<LeasedRate>& rates, const json::storage_ptr& storage = {}) {
    json::array array(storage);
    array.reserve(rates.size());
    for (const LeasedRate& rate : rates) {
        json::array& pair = array.emplace_back(json::array_kind).get_array();
        pair.reserve(2);
        pair.emplace_back(rate.job);
        pair.emplace_back(rate.bytes_per_second);
    }
    return array;
}

// Each lease is saved before it is granted, so this row is written more often than all others: into memory of the
// stack.
std::string text_of(const std::vector<Lease>& leases) {
    std::array<unsigned char, 8 << 10> memory;
    json::monotonic_resource storage(memory.data(), memory.size());
    json::array array(&storage);
    for (const Lease& lease : leases) {
        json::object& object = array.emplace_back(json::object_kind).get_object();
        object.reserve(4);
        object.emplace("number", lease.number);
        object.emplace("expires_ns", lease.expires_ns);
        object.emplace("floor_bytes_per_second", lease.floor_bytes_per_second);
        object.emplace("rates", json_of(lease.rates, &storage));
    }
    json::object object(&storage);
    object.emplace("leases", std::move(array));
    return json_text(object);
}

json::object json_of(const std::vector<DatasetQuota>& quotas) {
    json::array array;
    for (const DatasetQuota& quota : quotas) {
        array.push_back(json::array{quota.name, quota.memory_bytes, quota.disk_bytes});
    }
    return {{"quotas", std::move(array)}};
}

// `at` and `to_number` throw on malformed rows; `read_row` catches.
std::uint64_t to_unsigned(const json::value& value) {
    return value.to_number<std::uint64_t>();
}

// A rate of another allocator may have any bits.
double to_rate(const json::value& value) {
    const auto rate = value.to_number<double>();
    if (!(rate >= 0 && rate <= kRateMax)) throw std::out_of_range("a rate is out of range");
    return rate;
}

std::vector<LeasedRate> leased_rates_of(const json::value& value) {
    std::vector<LeasedRate> rates;
    for (const json::value& rate : value.as_array()) {
        rates.push_back({std::string(rate.at(0).as_string()), to_rate(rate.at(1))});
    }
    return rates;
}

std::vector<Lease> leases_of(const json::object& object) {
    std::vector<Lease> leases;
    for (const json::value& entry : object.at("leases").as_array()) {
        Lease lease{.number = to_unsigned(entry.at("number")),
                    .expires_ns = entry.at("expires_ns").to_number<std::int64_t>(),
                    .floor_bytes_per_second = entry.at("floor_bytes_per_second").to_number<double>()};
        lease.rates = leased_rates_of(entry.at("rates"));
        leases.push_back(std::move(lease));
    }
    return leases;
}

json::object json_of(const RecordedRates& recorded) {
    json::object object{{"bytes_per_second", recorded.bytes_per_second}, {"rates", json_of(recorded.rates)}};
    if (recorded.state_directory != 0) object["state_directory"] = recorded.state_directory;
    return object;
}

RecordedRates recorded_rates_of(const json::object& object) {
    const json::value* const directory = object.if_contains("state_directory");
    return {.bytes_per_second = to_rate(object.at("bytes_per_second")),
            .rates = leased_rates_of(object.at("rates")),
            .state_directory = directory == nullptr ? 0 : directory->to_number<std::uint64_t>()};
}

std::vector<DatasetQuota> quotas_of(const json::object& object) {
    std::vector<DatasetQuota> quotas;
    for (const json::value& quota : object.at("quotas").as_array()) {
        quotas.push_back({std::string(quota.at(0).as_string()), to_unsigned(quota.at(1)), to_unsigned(quota.at(2))});
    }
    return quotas;
}

// Operators own a registration that an allocator before version 4 wrote.
Result<JobRegistration> registration_of(json::object object) {
    std::optional<RegistrationOwner> owner;
    if (const json::value* found = object.if_contains("owner")) {
        owner.emplace();
        const json::object& who = found->as_object();
        if (const json::value* uid = who.if_contains("uid")) {
            owner->uid = uid->to_number<std::uint32_t>();
        } else {
            owner->token = who.at("token").as_string();
        }
        object.erase("owner");
    }
    const bool by_scheduler = object.erase("by_scheduler") > 0;
    std::map<std::string, std::uint32_t> runs_on;
    if (const json::value* found = object.if_contains("runs_on")) {
        for (const auto& [node, gpus] : found->as_object()) runs_on[node] = gpus.to_number<std::uint32_t>();
        object.erase("runs_on");
    }
    std::vector<std::string> expected_on;
    if (const json::value* found = object.if_contains("expected_on")) {
        for (const json::value& node : found->as_array()) expected_on.emplace_back(node.as_string());
        object.erase("expected_on");
    }
    auto spec = read_job_registration(object, "");
    if (spec) spec->owner = std::move(owner);
    if (spec) spec->by_scheduler = by_scheduler;
    if (spec) spec->runs_on = std::move(runs_on);
    if (spec) spec->expected_on = std::move(expected_on);
    return spec;
}

Result<void> read_named(ClusterRecord& record, std::string_view kind, const std::string& name,
                        const json::object& object) {
    if (kind == "job") {
        auto spec = registration_of(object);
        if (!spec) return std::unexpected(spec.error());
        record.jobs[name] = std::move(*spec);
    } else if (kind == "node") {
        // An allocator of an earlier version may have written the report.
        json::object kept = object;
        kept.erase("warmed");
        auto report = read_node_report(kept, "", kProtocolOldest);
        if (!report) return std::unexpected(report.error());
        record.nodes[name] = std::move(*report);
    } else if (kind == "pin") {
        record.pins[name] = to_unsigned(object.at("bytes"));
    } else if (kind == "quotas") {
        record.quotas[name] = quotas_of(object);
    } else if (kind == "ideal") {
        const double rate = std::bit_cast<double>(to_unsigned(object.at("bits")));
        if (!(rate > 0 && rate <= kRateMax)) return fail(ErrorCode::corrupt, "its rate is out of range");
        record.ideals[name] = MeasuredIdeal{.bytes_per_second = rate, .user = std::nullopt};
        if (const json::value* user = object.if_contains("user")) {
            record.ideals[name]->user = user->to_number<std::uint32_t>();
        }
    } else if (kind == "epochs") {
        record.epochs[name] = {.first = object.at("first").to_number<std::uint32_t>(),
                               .last = object.at("last").to_number<std::uint32_t>()};
    } else if (kind == "leases") {
        record.leases[name] = leases_of(object);
    } else if (kind == "floor") {
        record.floors[name] = to_rate(object.at("bytes_per_second"));
    } else if (kind == "rates") {
        if (name.empty() || name.size() > kNameBytesMax) return fail(ErrorCode::corrupt, "its node has no name");
        record.rates[name] = recorded_rates_of(object);
    } else {
        return fail(ErrorCode::corrupt, "its kind is unknown");
    }
    return {};
}

Result<void> read_single(StoredState& into, std::string_view key, const json::object& object) {
    if (key == "run") {
        into.run.boot = object.at("boot").as_string();
        into.run.lease_ns = object.at("lease_ns").to_number<std::int64_t>();
        if (into.run.lease_ns < 0 || into.run.lease_ns > kLeaseMax_ns) {
            return fail(ErrorCode::corrupt, "its lease_ns is out of range");
        }
        if (const json::value* until = object.if_contains("no_lease_before_ns")) {
            into.run.no_lease_before_ns = until->to_number<std::int64_t>();
        }
        if (const json::value* recorded = object.if_contains("rates_recorded")) {
            into.run.rates_recorded = recorded->as_bool();
        }
        if (const json::value* term = object.if_contains("term")) into.run.term = to_unsigned(*term);
        if (into.run.term >= kTermMax) return fail(ErrorCode::corrupt, "its term is out of range");
    } else if (key == "remote") {
        into.record.remote = {object.at("bytes_per_second").to_number<double>(),
                              object.at("configured_bytes_per_second").to_number<double>()};
    } else if (key == "plan") {
        into.record.plan_number = to_unsigned(object.at("number"));
    } else {
        return fail(ErrorCode::corrupt, "its kind is unknown");
    }
    return {};
}

Row row(std::string key, const json::object& object) {
    return {std::move(key), json_text(object)};
}

template <typename Value, typename ToJson>
void put(std::vector<Row>& rows, std::string_view kind, const std::string& name, const std::optional<Value>& value,
         ToJson to_json) {
    std::string key = std::string(kind) + "/" + name;
    rows.push_back(value ? row(std::move(key), to_json(*value)) : Row{std::move(key), std::nullopt});
}

}  // namespace

bool is_durable(std::string_view key) {
    return key == "remote" || key.starts_with("job/") || key.starts_with("pin/") || key.starts_with("floor/") ||
           key.starts_with("rates/");
}

std::vector<Row> durable_rows_of(const ClusterRecord& change) {
    std::vector<Row> rows;
    for (const auto& [name, spec] : change.jobs)
        put(rows, "job", name, spec, [](const auto& it) { return json_of(it); });
    for (const auto& [dataset, bytes] : change.pins) {
        put(rows, "pin", dataset, bytes, [](std::uint64_t it) { return json::object{{"bytes", it}}; });
    }
    for (const auto& [node, floor] : change.floors) {
        put(rows, "floor", node, floor, [](double it) { return json::object{{"bytes_per_second", it}}; });
    }
    for (const auto& [node, rates] : change.rates) {
        put(rows, "rates", node, rates, [](const auto& it) { return json_of(it); });
    }
    if (change.remote) {
        rows.push_back(row("remote", {{"bytes_per_second", change.remote->bytes_per_second},
                                      {"configured_bytes_per_second", change.remote->configured_bytes_per_second}}));
    }
    return rows;
}

std::vector<Row> rows_of(const ClusterRecord& change) {
    std::vector<Row> rows = durable_rows_of(change);
    for (const auto& [name, report] : change.nodes) {
        // Later versions add only what is new in each report.
        put(rows, "node", name, report, [](const auto& it) { return to_json(it, kProtocolOldest); });
    }
    for (const auto& [job, ideal] : change.ideals) {
        put(rows, "ideal", job, ideal, [](const auto& it) { return json_of(it); });
    }
    for (const auto& [job, seen] : change.epochs) {
        put(rows, "epochs", job, seen,
            [](const auto& it) { return json::object{{"first", it.first}, {"last", it.last}}; });
    }
    for (const auto& [node, quotas] : change.quotas) {
        put(rows, "quotas", node, quotas, [](const auto& it) { return json_of(it); });
    }
    for (const auto& [node, leases] : change.leases) {
        rows.push_back({"leases/" + node, leases ? std::optional(text_of(*leases)) : std::nullopt});
    }
    if (change.plan_number) rows.push_back(row("plan", {{"number", *change.plan_number}}));
    return rows;
}

Row row_of(const StateRun& run) {
    json::object object{{"boot", run.boot}, {"lease_ns", run.lease_ns}};
    if (run.no_lease_before_ns) object["no_lease_before_ns"] = *run.no_lease_before_ns;
    if (run.rates_recorded) object["rates_recorded"] = true;
    if (run.term > 0) object["term"] = run.term;
    return row("run", object);
}

Result<void> read_row(StoredState& into, std::string_view key, std::string_view text) {
    const auto damaged = [&](const std::string& why) {
        return fail(ErrorCode::corrupt, "row \"" + std::string(key) + "\": " + why);
    };
    try {
        const auto object = parse_json_object(text, "it");
        if (!object) return damaged(object.error().message);
        const std::size_t slash = key.find('/');
        auto read = slash == std::string_view::npos
                        ? read_single(into, key, *object)
                        : read_named(into.record, key.substr(0, slash), std::string(key.substr(slash + 1)), *object);
        if (!read) return damaged(read.error().message);
    } catch (const std::exception& error) {
        return damaged(error.what());
    }
    return {};
}

ClusterRecord expire_leases(ClusterRecord& record, std::int64_t now_ns) {
    for (auto& [node, leases] : record.leases) {
        if (!leases) continue;
        for (Lease& lease : *leases) lease.expires_ns = now_ns;
    }
    for (const auto& [node, floor] : record.floors) {
        if (!floor) continue;
        auto& leases = record.leases[node];
        if (!leases) leases.emplace();
        // Number 0: superseded by any lease that the node applies.
        leases->insert(leases->begin(), {.expires_ns = now_ns, .floor_bytes_per_second = *floor, .rates = {}});
    }
    return {.leases = record.leases};
}

void carry_over_rates(ClusterRecord& record, std::int64_t until_ns) {
    for (const auto& [node, rates] : record.rates) {
        if (!rates) continue;
        auto& leases = record.leases[node];
        if (!leases) leases.emplace();
        leases->push_back(LeaseLedger::carried_over(*rates, until_ns));
    }
    record.rates_until_ns = until_ns;
}

}  // namespace larder::allocator
