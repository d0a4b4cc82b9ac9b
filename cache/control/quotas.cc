#include "cache/control/quotas.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/server/logging.h"
#include "base/units.h"

namespace larder::cache {
namespace {

std::string exact_size(std::uint64_t bytes) {
    return format_bytes(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace

Result<void> Quotas::check_capacity(const std::map<std::string, Quota>& changes) const {
    Quota sum;
    const auto take = [&](const DatasetRecord& record) {
        const auto changed = changes.find(record.definition.name);
        const Quota& quota = changed == changes.end() ? record.quota : changed->second;
        const bool overflow = __builtin_add_overflow(sum.memory_bytes, quota.memory_bytes, &sum.memory_bytes) ||
                              __builtin_add_overflow(sum.disk_bytes, quota.disk_bytes, &sum.disk_bytes);
        if (overflow) sum = {.memory_bytes = ~std::uint64_t{0}, .disk_bytes = ~std::uint64_t{0}};
        return !overflow;
    };
    bool fits = true;
    for (const auto& [name, dataset] : datasets_.all()) fits = fits && take(dataset.record);
    for (const auto& [name, record] : datasets_.changing()) fits = fits && take(record);
    for (const auto& [name, quota] : changes) {
        if (!datasets_.all().contains(name) && !datasets_.changing().contains(name))
            fits = fits && take({.definition = {.name = name}, .quota = quota});
    }
    const auto fail_capacity = [](const char* tier, std::uint64_t wanted, std::uint64_t capacity) {
        return fail(ErrorCode::no_space, std::string("the ") + tier + " quotas of all datasets together would be " +
                                             exact_size(wanted) + ", but this node has " + exact_size(capacity) +
                                             " for them (started with --" + tier + ", or `" + tier +
                                             "` in its config): lower a quota or start the daemon with more");
    };
    if (!fits || sum.memory_bytes > config_.memory_bytes) {
        return fail_capacity("memory", sum.memory_bytes, config_.memory_bytes);
    }
    if (sum.disk_bytes > config_.disk_bytes) return fail_capacity("disk", sum.disk_bytes, config_.disk_bytes);
    return {};
}

void Quotas::apply_quota(NodeDataset& dataset, Quota quota) {
    dataset.record.quota = quota;
    if (!dataset.offline) dataset.shard->set_quota(dataset.record.dataset_id, quota);
    log_info("quota set", {{"dataset", dataset.record.definition.name},
                           {"memory_bytes", quota.memory_bytes},
                           {"disk_bytes", quota.disk_bytes}});
}

Quota Quotas::changing() const {
    Quota sum;
    for (const auto& [name, record] : datasets_.changing()) {
        sum.memory_bytes += record.quota.memory_bytes;
        sum.disk_bytes += record.quota.disk_bytes;
    }
    return sum;
}

Quotas::QuotasOfOthers Quotas::quotas_of_others(const std::string& name) const {
    QuotasOfOthers sums;
    const auto take = [&](const DatasetRecord& record) {
        if (record.definition.name == name) return;
        Quota& sum = record.quota_held ? sums.held : sums.dealt;
        sum.memory_bytes += record.quota.memory_bytes;
        sum.disk_bytes += record.quota.disk_bytes;
    };
    for (const auto& [other, dataset] : datasets_.all()) take(dataset.record);
    for (const auto& [other, record] : datasets_.changing()) take(record);
    return sums;
}

Result<void> Quotas::check_room(const std::string& name, Quota quota) const {
    if (config_.allocator.endpoint.empty()) return check_capacity({{name, quota}});
    const Quota held = quotas_of_others(name).held;
    const auto check = [&](const char* tier, std::uint64_t capacity, std::uint64_t others,
                           std::uint64_t wanted) -> Result<void> {
        const std::uint64_t available = capacity - std::min(capacity, others);
        if (wanted <= available) return {};
        return fail(ErrorCode::no_space, "a " + std::string(tier) + " quota of " + format_bytes(wanted) +
                                             " is too large: at most " + exact_size(available) +
                                             " is free, because this node has " + format_bytes(capacity) +
                                             " (started with --" + tier + ", or `" + tier +
                                             "` in its config) and other datasets' quotas that were set by hand have " +
                                             format_bytes(others));
    };
    if (auto fits = check("memory", config_.memory_bytes, held.memory_bytes, quota.memory_bytes); !fits) return fits;
    return check("disk", config_.disk_bytes, held.disk_bytes, quota.disk_bytes);
}

Result<void> Quotas::make_room(const std::string& name, Quota quota) {
    if (auto fits = check_room(name, quota); !fits) return fits;
    if (config_.allocator.endpoint.empty()) return {};
    const auto [held, dealt] = quotas_of_others(name);
    set_by_hand_ns_ = clock_.now_ns();
    const auto excess = [](std::uint64_t capacity, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
        return a + b + c - std::min(capacity, a + b + c);
    };
    lower_dealt_quotas(&Quota::memory_bytes,
                       excess(config_.memory_bytes, held.memory_bytes, quota.memory_bytes, dealt.memory_bytes));
    lower_dealt_quotas(&Quota::disk_bytes,
                       excess(config_.disk_bytes, held.disk_bytes, quota.disk_bytes, dealt.disk_bytes));
    return {};
}

// Takes `bytes` from quotas set by the allocator, largest quota first: unused bytes, then bytes of datasets without
// sessions, then bytes of any dataset.
void Quotas::lower_dealt_quotas(std::uint64_t Quota::* tier, std::uint64_t bytes) {
    std::vector<NodeDataset*> dealt;
    for (auto& [name, dataset] : datasets_.all()) {
        if (!dataset.record.quota_held) dealt.push_back(&dataset);
    }
    std::ranges::stable_sort(dealt, std::ranges::greater(),
                             [&](const NodeDataset* dataset) { return dataset->record.quota.*tier; });
    const auto use_of = [&](const NodeDataset& dataset) {
        const auto known = used_.find(dataset.record.dataset_id);
        return known == used_.end() ? DatasetUse{} : known->second;
    };
    std::map<NodeDataset*, std::uint64_t> taken_bytes;
    for (const auto& [also_used, also_read] : {std::pair{false, true}, {true, false}, {true, true}}) {
        for (NodeDataset* dataset : dealt) {
            const DatasetUse use = use_of(*dataset);
            if (use.sessions > 0 && !also_read) continue;
            const std::uint64_t remaining = dataset->record.quota.*tier - taken_bytes[dataset];
            const std::uint64_t spared = also_used ? 0 : use.bytes.*tier;
            const std::uint64_t taken = std::min(bytes, remaining - std::min(remaining, spared));
            taken_bytes[dataset] += taken;
            bytes -= taken;
        }
    }
    for (const auto& [dataset, taken] : taken_bytes) {
        if (taken == 0) continue;
        Quota quota = dataset->record.quota;
        quota.*tier -= taken;
        apply_quota(*dataset, quota);
        datasets_.save(dataset->record, nullptr);
    }
}

void Quotas::set(const std::string& name, std::optional<Quota> quota, Done done) {
    const auto found = datasets_.find(name);
    if (!found) return done(std::unexpected(found.error()));
    if (!quota && config_.allocator.endpoint.empty()) {
        return done(fail(ErrorCode::unsupported, "no allocator sets quotas here: give --memory or --disk"));
    }
    NodeDataset& dataset = datasets_.at(name);
    if (quota) {
        if (auto made = make_room(name, *quota); !made) return done(made);
        if (dataset.record.quota != *quota) apply_quota(dataset, *quota);
    }
    dataset.record.quota_held = quota.has_value();
    *dataset.quota_assigned = quota.has_value();
    datasets_.save(dataset.record, std::move(done));
}

Result<void> Quotas::apply_plan(const std::map<std::string, Quota>& quotas, std::int64_t reported_ns) {
    if (reported_ns < set_by_hand_ns_) return {};
    std::map<std::string, Quota> changes;
    for (const auto& [name, quota] : quotas) {
        const auto found = datasets_.all().find(name);
        if (found == datasets_.all().end() || found->second.record.quota_held) continue;
        if (found->second.record.quota != quota) changes[name] = quota;
    }
    if (auto checked = check_capacity(changes); !checked) return checked;
    for (const auto& [name, quota] : changes) {
        NodeDataset& dataset = datasets_.at(name);
        apply_quota(dataset, quota);
        datasets_.save(dataset.record, nullptr);
    }
    for (const auto& [name, quota] : quotas) {
        if (const auto found = datasets_.all().find(name); found != datasets_.all().end())
            *found->second.quota_assigned = true;
    }
    return {};
}

bool Quotas::any_unassigned() const {
    return std::ranges::any_of(datasets_.all(), [](const auto& item) { return !*item.second.quota_assigned; });
}

// Under an allocator: sets the quotas of known datasets as if each was set by hand. Changes nothing if they do not fit.
Result<void> Quotas::hold(const std::map<std::string, Quota>& quotas) {
    std::map<std::string, Quota> held;
    for (const auto& [name, dataset] : datasets_.all())
        held[name] = dataset.record.quota_held ? dataset.record.quota : Quota{};
    for (const auto& [name, quota] : quotas) held[name] = quota;
    if (auto checked = check_capacity(held); !checked) return checked;
    // First lower the quotas that shrink: this makes room for those that grow.
    for (const auto& [name, quota] : quotas) {
        NodeDataset& dataset = datasets_.at(name);
        const Quota before = dataset.record.quota;
        dataset.record.quota_held = true;
        *dataset.quota_assigned = true;
        const Quota less{.memory_bytes = std::min(before.memory_bytes, quota.memory_bytes),
                         .disk_bytes = std::min(before.disk_bytes, quota.disk_bytes)};
        if (less != before) apply_quota(dataset, less);
    }
    for (const auto& [name, quota] : quotas) {
        if (auto made = make_room(name, quota); !made) return made;
        NodeDataset& dataset = datasets_.at(name);
        if (dataset.record.quota != quota) apply_quota(dataset, quota);
        datasets_.save(dataset.record, nullptr);
    }
    return {};
}

Result<void> Quotas::apply(const DaemonConfig& config) {
    std::map<std::string, Quota> quotas;
    for (const auto& [name, declared] : config.datasets) {
        const auto found = datasets_.all().find(name);
        Quota quota = found == datasets_.all().end() ? Quota{} : found->second.record.quota;
        quota.memory_bytes = declared.quota_memory_bytes.value_or(quota.memory_bytes);
        quota.disk_bytes = declared.quota_disk_bytes.value_or(quota.disk_bytes);
        quotas[name] = quota;
    }
    if (!config_.allocator.endpoint.empty()) {
        std::erase_if(quotas, [&](const auto& quota) {
            const DatasetRequest& declared = config.datasets.at(quota.first);
            return !datasets_.all().contains(quota.first) ||
                   (!declared.quota_memory_bytes && !declared.quota_disk_bytes);
        });
        return hold(quotas);
    }
    if (auto checked = check_capacity(quotas); !checked) return checked;
    for (auto& [name, dataset] : datasets_.all()) {
        const auto declared = quotas.find(name);
        if (declared == quotas.end() || declared->second == dataset.record.quota) continue;
        apply_quota(dataset, declared->second);
        datasets_.save(dataset.record, nullptr);
    }
    return {};
}

void Quotas::note_use(const ShardStatistics& statistics) {
    used_.clear();
    for (const DatasetStatistics& dataset : statistics.datasets) {
        const StoreUsage& usage = dataset.usage;
        used_[dataset.dataset_id] = {.bytes = {.memory_bytes = usage.memory_bytes, .disk_bytes = usage.disk_bytes},
                                     .sessions = dataset.sessions};
    }
}

}  // namespace larder::cache
