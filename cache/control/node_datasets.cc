// Node: warming, verifying and removing datasets, quotas and job limits.

#include <boost/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/server/json_text.h"
#include "base/server/logging.h"
#include "base/units.h"
#include "cache/control/node.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

constexpr std::int64_t kScanPoll_ns = 20'000'000;
// How long a warm task waits for the allocator to set a new dataset's quota, which usually takes a second.
constexpr std::int64_t kQuotaAssignmentTimeout_ns = 10'000'000'000;

Result<DatasetRecord> record_of(const std::string& name, DatasetRequest declared) {
    declared.definition.name = name;
    return check_dataset_request(declared, {.owner = ::geteuid(), .group = ::getegid()});
}

const char* text_of(BlockFound::What what) {
    switch (what) {
        case BlockFound::What::bad_in_cache: return "bad in the cache, and dropped from it";
        case BlockFound::What::corrupt_at_remote: return "corrupt at the remote";
        case BlockFound::What::unreadable: return "could not be read";
    }
    return "";
}

std::string text_of(const BlockFound& found, const std::string& why) {
    return found.object + ", " + std::to_string(found.bytes) + " B from offset " + std::to_string(found.offset) + ": " +
           text_of(found.what) + (why.empty() ? "" : ": " + why);
}

// `place` knows the full reason of a failed read; the scan knows at most an errno. Null if the dataset was not opened.
json::array notes_of(const ScanProgress& scan, const RemotePlace* place) {
    json::array notes;
    for (const BlockFound& found : scan.found) {
        const bool failed = found.what == BlockFound::What::unreadable && place != nullptr;
        const std::string full_reason = failed ? place->problems().latest(found.object) : std::string();
        notes.emplace_back(text_of(found, full_reason.empty() ? found.why : full_reason));
    }
    return notes;
}

std::string verify_result(const ScanProgress& scan, ScanKind kind, const RemotePlace* place) {
    const std::uint64_t unchecked = scan.blocks_unchecked.load();
    json::array notes = notes_of(scan, place);
    if (unchecked > 0) {
        notes.emplace_back(std::to_string(unchecked) + (kind == ScanKind::verify_remote
                                                            ? " blocks are not cached and have no checksum (dataset "
                                                              "add --checksum) to compare with: they were not read"
                                                            : " blocks are not cached: they were not read"));
    }
    return json_text(json::object{{"blocks", scan.blocks_done.load()},
                                  {"bytes", scan.bytes_done.load()},
                                  {"blocks_bad", scan.blocks_bad.load()},
                                  {"blocks_failed", scan.blocks_failed.load()},
                                  {"blocks_corrupt", scan.blocks_corrupt.load()},
                                  {"blocks_unchecked", unchecked},
                                  {"notes", std::move(notes)}});
}

json::object warm_plan(const WarmPlan& plan) {
    return {{"blocks", plan.blocks},
            {"bytes", plan.bytes},
            {"cached_blocks", plan.cached_blocks},
            {"cached_bytes", plan.cached_bytes},
            {"peer_blocks", plan.peer_blocks},
            {"promised_blocks", plan.promised_blocks},
            {"promised_bytes", plan.promised_bytes},
            {"quota", json::object{{"memory_bytes", plan.quota_memory_bytes}, {"disk_bytes", plan.quota_disk_bytes}}}};
}

std::string warm_result(const std::string& name, const ScanProgress& scan, const RemotePlace* place) {
    const WarmPlan& plan = scan.plan;
    const WarmOutcome& outcome = scan.outcome;
    const std::uint64_t missed =
        outcome.disk_full_blocks + outcome.disk_failed_blocks + outcome.failed_blocks + outcome.not_asked_blocks;
    const bool reached_plan = missed == 0 && outcome.cached_blocks >= plan.cached_blocks + plan.promised_blocks;
    if (reached_plan) {
        log_info("dataset warmed", {{"dataset", name}, {"blocks", plan.blocks}, {"cached", outcome.cached_blocks}});
    } else {
        log_warn("warming cached fewer blocks than planned", {{"dataset", name},
                                                              {"blocks", plan.blocks},
                                                              {"promised", plan.cached_blocks + plan.promised_blocks},
                                                              {"cached", outcome.cached_blocks},
                                                              {"disk_full", outcome.disk_full_blocks},
                                                              {"disk_failed", outcome.disk_failed_blocks},
                                                              {"remote_failed", outcome.failed_blocks},
                                                              {"not_asked", outcome.not_asked_blocks},
                                                              {"disk_problem", outcome.disk_problem}});
    }
    json::object result = warm_plan(plan);
    result["fetched_bytes"] = scan.bytes_done.load();
    result["cached_blocks"] = outcome.cached_blocks;
    result["cached_bytes"] = outcome.cached_bytes;
    result["kept"] = reached_plan;
    result["not_cached"] = json::object{{"at_peers", outcome.peer_blocks},
                                        {"quota", outcome.quota_blocks},
                                        {"disk_full", outcome.disk_full_blocks},
                                        {"disk_failed", outcome.disk_failed_blocks},
                                        {"failed", outcome.failed_blocks},
                                        {"not_asked", outcome.not_asked_blocks},
                                        {"busy", outcome.busy_blocks}};
    result["disk_problem"] = outcome.disk_problem;
    result["notes"] = notes_of(scan, place);
    return json_text(result);
}

std::string exact_size(std::uint64_t bytes) {
    return format_bytes(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace

// --- warming and verifying

Result<std::uint64_t> Node::scan(const std::string& name, ScanKind kind) {
    const auto found = find(name);
    if (!found) return std::unexpected(found.error());
    if (auto idle = check_idle(**found); !idle) return std::unexpected(idle.error());
    if (auto online = check_online(**found); !online) return std::unexpected(online.error());
    const auto bucket = job_limits_.bucket(kScanJob, clock_.now_ns());
    if (!bucket) return std::unexpected(bucket.error());
    Tasks::Work work{.kind = kind == ScanKind::warm ? "warm" : "verify", .dataset = name, .unit = "blocks"};
    const auto quota_assigned = kind == ScanKind::warm ? (*found)->quota_assigned : nullptr;
    const std::shared_ptr<const RemotePlace> place = (*found)->place;
    work.run = [this, name, kind, quota_assigned, place, id = (*found)->record.dataset_id, shard = (*found)->shard,
                bucket = *bucket](TaskProgress& progress, const std::stop_token& stop) -> Tasks::Outcome {
        progress.set_remote(place == nullptr ? "" : place->endpoint());
        const std::int64_t deadline_ns = clock_.now_ns() + kQuotaAssignmentTimeout_ns;
        while (quota_assigned != nullptr && !*quota_assigned && !stop.stop_requested() &&
               clock_.now_ns() < deadline_ns) {
            sleep_ns(kScanPoll_ns);
        }
        auto scan = std::make_shared<ScanProgress>();
        auto started = shard->call([&](Shard& this_shard) { return this_shard.start_scan(id, kind, bucket, scan); });
        if (!started) return std::unexpected(started.error());
        bool plan_shown = false;
        for (bool finished = false; !finished;) {
            if (stop.stop_requested() && !scan->cancel.exchange(true)) shard->post([](Shard&) {});  // wakes the shard
            sleep_ns(kScanPoll_ns);
            finished = scan->finished;
            progress.done = scan->blocks_done.load();
            progress.total = scan->blocks_total.load();
            progress.bytes_done = scan->bytes_done.load();
            if (scan->planned && !std::exchange(plan_shown, true)) {
                progress.set_plan(json_text(warm_plan(scan->plan)));
            }
        }
        if (stop.stop_requested()) return fail(ErrorCode::cancelled, "cancelled");
        if (kind != ScanKind::warm) return verify_result(*scan, kind, place.get());
        if (!scan->outcome.counted) return fail(ErrorCode::cancelled, "the dataset is no longer served");
        return warm_result(name, *scan, place.get());
    };
    auto task = tasks_.start(std::move(work));
    if (task) datasets_.at(name).task = *task;
    return task;
}

// --- removal

void Node::remove(const std::string& name, Done done) {
    if (const auto damaged = damaged_.extract(name)) {
        changing_.emplace(name, DatasetRecord{});
        return remove_files(name, damaged.mapped().dataset_id, std::move(done));
    }
    const auto found = find(name);
    if (!found) return done(std::unexpected(found.error()));
    if (auto idle = check_idle(**found); !idle) return done(idle);
    const std::uint64_t dataset_id = (*found)->record.dataset_id;
    ShardThread* shard = (*found)->shard;
    const bool served = !(*found)->offline;
    datasets_.erase(name);
    changing_.emplace(name, DatasetRecord{});  // reserves the name until all files are deleted
    shard->post([this, name, dataset_id, served, done = std::move(done)](Shard& this_shard) {
        if (served) this_shard.remove_dataset(dataset_id);
        remove_files(name, dataset_id, done);
    });
}

// Any thread.
void Node::remove_files(const std::string& name, std::uint64_t dataset_id, Done done) {
    files_->post([this, name, dataset_id, done = std::move(done)] {
        Result<void> removed = catalog_.remove(name);
        index_->remove_dataset(dataset_id);
        std::error_code ignored;
        std::filesystem::remove_all(segment_directory(dataset_id), ignored);
        post_control_([this, name, removed, done] {
            changing_.erase(name);
            log_info("dataset removed", {{"dataset", name}});
            done(removed);
        });
    });
}

// --- quotas and limits

Result<void> Node::check_capacity(const std::map<std::string, Quota>& changes) const {
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
    for (const auto& [name, dataset] : datasets_) fits = fits && take(dataset.record);
    for (const auto& [name, record] : changing_) fits = fits && take(record);
    for (const auto& [name, quota] : changes) {
        if (!datasets_.contains(name) && !changing_.contains(name))
            fits = fits && take({.definition = {.name = name}, .quota = quota});
    }
    const auto fail_capacity = [](const char* tier, std::uint64_t wanted, std::uint64_t capacity) {
        return fail(ErrorCode::no_space, std::string("the ") + tier + " quotas of all datasets together would be " +
                                             exact_size(wanted) + ", but this node has " + exact_size(capacity) +
                                             " for them (`" + tier + "`): lower a quota or start the daemon with more");
    };
    if (!fits || sum.memory_bytes > config_.memory_bytes) {
        return fail_capacity("memory", sum.memory_bytes, config_.memory_bytes);
    }
    if (sum.disk_bytes > config_.disk_bytes) return fail_capacity("disk", sum.disk_bytes, config_.disk_bytes);
    return {};
}

void Node::apply_quota(NodeDataset& dataset, Quota quota) {
    dataset.record.quota = quota;
    if (!dataset.offline) {
        dataset.shard->post([id = dataset.record.dataset_id, quota](Shard& shard) { shard.set_quota(id, quota); });
    }
    log_info("quota set", {{"dataset", dataset.record.definition.name},
                           {"memory_bytes", quota.memory_bytes},
                           {"disk_bytes", quota.disk_bytes}});
}

Quota Node::changing_quota() const {
    Quota sum;
    for (const auto& [name, record] : changing_) {
        sum.memory_bytes += record.quota.memory_bytes;
        sum.disk_bytes += record.quota.disk_bytes;
    }
    return sum;
}

Node::QuotasOfOthers Node::quotas_of_others(const std::string& name) const {
    QuotasOfOthers sums;
    const auto take = [&](const DatasetRecord& record) {
        if (record.definition.name == name) return;
        Quota& sum = record.quota_held ? sums.held : sums.dealt;
        sum.memory_bytes += record.quota.memory_bytes;
        sum.disk_bytes += record.quota.disk_bytes;
    };
    for (const auto& [other, dataset] : datasets_) take(dataset.record);
    for (const auto& [other, record] : changing_) take(record);
    return sums;
}

// Fails if the quota, set by hand, cannot fit. The error names the largest quota that can.
Result<void> Node::check_room(const std::string& name, Quota quota) const {
    if (config_.allocator.endpoint.empty()) return check_capacity({{name, quota}});
    const Quota held = quotas_of_others(name).held;
    const auto check = [&](const char* tier, std::uint64_t capacity, std::uint64_t others,
                           std::uint64_t wanted) -> Result<void> {
        const std::uint64_t available = capacity - std::min(capacity, others);
        if (wanted <= available) return {};
        return fail(ErrorCode::no_space,
                    "a " + std::string(tier) + " quota of " + exact_size(wanted) + " is too large: at most " +
                        exact_size(available) + " is free, because this node has " + exact_size(capacity) + " (`" +
                        tier + "`) and other datasets' quotas that were set by hand have " + exact_size(others));
    };
    if (auto fits = check("memory", config_.memory_bytes, held.memory_bytes, quota.memory_bytes); !fits) return fits;
    return check("disk", config_.disk_bytes, held.disk_bytes, quota.disk_bytes);
}

// Lowers quotas set by the allocator so that a quota set by hand fits.
Result<void> Node::make_room(const std::string& name, Quota quota) {
    if (auto fits = check_room(name, quota); !fits) return fits;
    if (config_.allocator.endpoint.empty()) return {};
    const auto [held, dealt] = quotas_of_others(name);
    quota_set_ns_ = clock_.now_ns();
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
void Node::lower_dealt_quotas(std::uint64_t Quota::* tier, std::uint64_t bytes) {
    std::vector<NodeDataset*> dealt;
    for (auto& [name, dataset] : datasets_) {
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
        save(dataset->record, nullptr);
    }
}

void Node::set_quota(const std::string& name, std::optional<Quota> quota, Done done) {
    const auto found = find(name);
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
    save(dataset.record, std::move(done));
}

Result<void> Node::apply_plan(const std::map<std::string, Quota>& quotas, std::int64_t reported_ns) {
    if (reported_ns < quota_set_ns_) return {};
    std::map<std::string, Quota> changes;
    for (const auto& [name, quota] : quotas) {
        const auto found = datasets_.find(name);
        if (found == datasets_.end() || found->second.record.quota_held) continue;
        if (found->second.record.quota != quota) changes[name] = quota;
    }
    if (auto checked = check_capacity(changes); !checked) return checked;
    for (const auto& [name, quota] : changes) {
        NodeDataset& dataset = datasets_.at(name);
        apply_quota(dataset, quota);
        save(dataset.record, nullptr);
    }
    for (const auto& [name, quota] : quotas) {
        if (const auto found = datasets_.find(name); found != datasets_.end()) *found->second.quota_assigned = true;
    }
    return {};
}

bool Node::any_quota_unassigned() const {
    return std::ranges::any_of(datasets_, [](const auto& item) { return !*item.second.quota_assigned; });
}

void Node::wake_shards() {
    for (const auto& shard : shards_) shard->post([](Shard&) {});
}

void Node::lease(RateLease lease) {
    job_limits_.lease(std::move(lease), clock_.now_ns());
    wake_shards();
}

void Node::expire_lease() {
    if (job_limits_.expire(clock_.now_ns())) wake_shards();
}

void Node::set_job_limit(const std::string& job, std::optional<JobLimit> limit, Done done) {
    if (limit) {
        job_limits_.set(job, *limit, clock_.now_ns());
    } else {
        job_limits_.unset(job, clock_.now_ns());
    }
    wake_shards();
    log_info("job limit set",
             {{"job", job}, {"rate", limit ? format_bytes_per_second(limit->rate_bytes_per_second) : "as configured"}});
    files_->post([this, text = job_limits_.to_json(), done = std::move(done)] {
        auto written = replace_file(config_.state_directory + "/limits.json", text, 0640);
        post_control_([written, done] { done(written); });
    });
}

void Node::save(const DatasetRecord& record, Done done) {
    files_->post([this, record, done = std::move(done)] {
        auto saved = catalog_.save(record);
        if (!saved) log_error("cannot write a dataset's record", {{"error", saved.error().message}});
        if (done) post_control_([saved, done] { done(saved); });
    });
}

// Under an allocator: sets the quotas of known datasets as if each was set by hand. Changes nothing if they do not fit.
Result<void> Node::hold_quotas(const std::map<std::string, Quota>& quotas) {
    std::map<std::string, Quota> held;
    for (const auto& [name, dataset] : datasets_)
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
        save(dataset.record, nullptr);
    }
    return {};
}

Result<void> Node::apply(const DaemonConfig& config) {
    std::map<std::string, Quota> quotas;
    std::vector<DatasetRecord> wanted;
    for (const auto& [name, declared] : config.datasets) {
        const auto found = datasets_.find(name);
        Quota quota = found == datasets_.end() ? Quota{} : found->second.record.quota;
        quota.memory_bytes = declared.quota_memory_bytes.value_or(quota.memory_bytes);
        quota.disk_bytes = declared.quota_disk_bytes.value_or(quota.disk_bytes);
        quotas[name] = quota;
        if (found != datasets_.end() || changing_.contains(name) || damaged_.contains(name)) continue;
        auto record = record_of(name, declared);
        if (!record) return std::unexpected(record.error().within("dataset \"" + name + "\" of the config"));
        wanted.push_back(std::move(*record));
    }
    if (config_.allocator.endpoint.empty()) {
        if (auto checked = check_capacity(quotas); !checked) return checked;
    } else {
        std::erase_if(quotas, [&](const auto& quota) {
            const DatasetRequest& declared = config.datasets.at(quota.first);
            return !datasets_.contains(quota.first) || (!declared.quota_memory_bytes && !declared.quota_disk_bytes);
        });
        if (auto held = hold_quotas(quotas); !held) return held;
    }
    job_limits_.apply(config, clock_.now_ns());
    wake_shards();
    for (auto& [name, dataset] : datasets_) {
        const auto declared = quotas.find(name);
        if (declared == quotas.end() || !config_.allocator.endpoint.empty()) continue;
        if (declared->second == dataset.record.quota) continue;
        apply_quota(dataset, declared->second);
        save(dataset.record, nullptr);
    }
    for (DatasetRecord& record : wanted) {
        if (auto task = add(std::move(record)); !task) return std::unexpected(task.error());
    }
    return {};
}

}  // namespace larder::cache
