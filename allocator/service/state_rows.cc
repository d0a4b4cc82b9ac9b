#include "allocator/service/state_rows.h"

#include <boost/json.hpp>

#include <bit>
#include <cmath>
#include <utility>

#include "allocator/protocol/codec.h"
#include "base/server/json_reader.h"
#include "base/server/json_text.h"

namespace larder::allocator {
namespace json = boost::json;
namespace {

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
    return object;
}

json::object json_of(const std::vector<Lease>& leases) {
    json::array array;
    for (const Lease& lease : leases) {
        json::array rates;
        for (const LeasedRate& rate : lease.rates) rates.push_back(json::array{rate.job, rate.bytes_per_second});
        array.push_back(json::object{{"number", lease.number},
                                     {"expires_ns", lease.expires_ns},
                                     {"floor_bytes_per_second", lease.floor_bytes_per_second},
                                     {"rates", std::move(rates)}});
    }
    return {{"leases", std::move(array)}};
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

std::vector<Lease> leases_of(const json::object& object) {
    std::vector<Lease> leases;
    for (const json::value& entry : object.at("leases").as_array()) {
        Lease lease{.number = to_unsigned(entry.at("number")),
                    .expires_ns = entry.at("expires_ns").to_number<std::int64_t>(),
                    .floor_bytes_per_second = entry.at("floor_bytes_per_second").to_number<double>()};
        for (const json::value& rate : entry.at("rates").as_array()) {
            lease.rates.push_back({std::string(rate.at(0).as_string()), rate.at(1).to_number<double>()});
        }
        leases.push_back(std::move(lease));
    }
    return leases;
}

json::object json_of(const RecordedRates& recorded) {
    json::array rates;
    for (const LeasedRate& rate : recorded.rates) rates.push_back(json::array{rate.job, rate.bytes_per_second});
    return {{"bytes_per_second", recorded.bytes_per_second}, {"rates", std::move(rates)}};
}

RecordedRates recorded_rates_of(const json::object& object) {
    RecordedRates recorded{.bytes_per_second = object.at("bytes_per_second").to_number<double>(), .rates = {}};
    for (const json::value& rate : object.at("rates").as_array()) {
        recorded.rates.push_back({std::string(rate.at(0).as_string()), rate.at(1).to_number<double>()});
    }
    return recorded;
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
    auto spec = read_job_registration(object, "");
    if (spec) spec->owner = std::move(owner);
    if (spec) spec->by_scheduler = by_scheduler;
    if (spec) spec->runs_on = std::move(runs_on);
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
        auto report = read_node_report(object, "", kProtocolOldest);
        if (!report) return std::unexpected(report.error());
        record.nodes[name] = std::move(*report);
    } else if (kind == "pin") {
        record.pins[name] = to_unsigned(object.at("bytes"));
    } else if (kind == "quotas") {
        record.quotas[name] = quotas_of(object);
    } else if (kind == "ideal") {
        record.ideal_bytes_per_second[name] = std::bit_cast<double>(to_unsigned(object.at("bits")));
    } else if (kind == "epochs") {
        record.epochs[name] = {.first = object.at("first").to_number<std::uint32_t>(),
                               .last = object.at("last").to_number<std::uint32_t>()};
    } else if (kind == "leases") {
        record.leases[name] = leases_of(object);
    } else if (kind == "floor") {
        record.floors[name] = object.at("bytes_per_second").to_number<double>();
    } else if (kind == "rates") {
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
        if (const json::value* until = object.if_contains("no_lease_before_ns")) {
            into.run.no_lease_before_ns = until->to_number<std::int64_t>();
        }
        if (const json::value* recorded = object.if_contains("rates_recorded")) {
            into.run.rates_recorded = recorded->as_bool();
        }
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

}  // namespace

bool is_durable(std::string_view key) {
    return key == "remote" || key.starts_with("job/") || key.starts_with("pin/") || key.starts_with("floor/") ||
           key.starts_with("rates/");
}

std::vector<Row> rows_of(const ClusterRecord& change) {
    std::vector<Row> rows;
    const auto put = [&](std::string_view kind, const std::string& name, const json::object* object) {
        std::string key = std::string(kind) + "/" + name;
        rows.push_back(object == nullptr ? Row{std::move(key), std::nullopt} : row(std::move(key), *object));
    };
    for (const auto& [name, spec] : change.jobs) {
        const json::object object = spec ? json_of(*spec) : json::object();
        put("job", name, spec ? &object : nullptr);
    }
    for (const auto& [dataset, bytes] : change.pins) {
        const json::object object{{"bytes", bytes.value_or(0)}};
        put("pin", dataset, bytes ? &object : nullptr);
    }
    for (const auto& [name, report] : change.nodes) {
        const json::object object = report ? to_json(*report) : json::object();
        put("node", name, report ? &object : nullptr);
    }
    for (const auto& [job, rate] : change.ideal_bytes_per_second) {
        const json::object object{{"bits", std::bit_cast<std::uint64_t>(rate.value_or(0))}};
        put("ideal", job, rate ? &object : nullptr);
    }
    for (const auto& [job, seen] : change.epochs) {
        const json::object object = seen ? json::object{{"first", seen->first}, {"last", seen->last}} : json::object();
        put("epochs", job, seen ? &object : nullptr);
    }
    for (const auto& [node, quotas] : change.quotas) {
        const json::object object = quotas ? json_of(*quotas) : json::object();
        put("quotas", node, quotas ? &object : nullptr);
    }
    for (const auto& [node, leases] : change.leases) {
        const json::object object = leases ? json_of(*leases) : json::object();
        put("leases", node, leases ? &object : nullptr);
    }
    for (const auto& [node, floor] : change.floors) {
        const json::object object{{"bytes_per_second", floor.value_or(0)}};
        put("floor", node, floor ? &object : nullptr);
    }
    for (const auto& [node, rates] : change.rates) {
        const json::object object = rates ? json_of(*rates) : json::object();
        put("rates", node, rates ? &object : nullptr);
    }
    if (change.remote) {
        rows.push_back(row("remote", {{"bytes_per_second", change.remote->bytes_per_second},
                                      {"configured_bytes_per_second", change.remote->configured_bytes_per_second}}));
    }
    if (change.plan_number) rows.push_back(row("plan", {{"number", *change.plan_number}}));
    return rows;
}

Row row_of(const StateRun& run) {
    json::object object{{"boot", run.boot}, {"lease_ns", run.lease_ns}};
    if (run.no_lease_before_ns) object["no_lease_before_ns"] = *run.no_lease_before_ns;
    if (run.rates_recorded) object["rates_recorded"] = true;
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

ClusterRecord carry_over_rates(ClusterRecord& record, std::int64_t until_ns) {
    for (const auto& [node, rates] : record.rates) {
        if (!rates) continue;
        auto& leases = record.leases[node];
        if (!leases) leases.emplace();
        leases->push_back(LeaseLedger::carried_over(*rates, until_ns));
    }
    record.rates_until_ns = until_ns;
    return {.leases = record.leases};
}

}  // namespace larder::allocator
