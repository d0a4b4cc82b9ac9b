#include "allocator/service/state_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "base/file_lock.h"
#include "base/server/lmdb_rows.h"
#include "base/server/logging.h"
#include "base/units.h"

namespace larder::allocator {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIdealPrefix = "ideal/";
constexpr std::string_view kEpochsPrefix = "epochs/";
constexpr std::string_view kFloorPrefix = "floor/";
constexpr std::string_view kRatesPrefix = "rates/";

// True for what users and operators set. Only they remove a floor, together with its node.
bool is_setting(const Row& row) {
    if (row.key.starts_with(kFloorPrefix)) return !row.text;
    return is_durable(row.key) && !row.key.starts_with(kRatesPrefix);
}

// Returns the keys of the rows that must be on record before the node is told of its lease.
std::array<std::string, 2> promises_to(const std::string& node) {
    return {std::string(kFloorPrefix) + node, std::string(kRatesPrefix) + node};
}

// True for rows that nodes report again, so that one unreadable row need not cost the rest.
bool is_reported_again(std::string_view key) {
    return key.starts_with("node/") || key.starts_with("quotas/") || key.starts_with(kIdealPrefix) ||
           key.starts_with(kEpochsPrefix);
}

// True if the two differ by no more than two measurements of one job do.
bool is_same_ideal(const MeasuredIdeal& now, const MeasuredIdeal& recorded) {
    constexpr double kSameIdeal = 1.0 / 8;
    return now.user == recorded.user &&
           std::abs(now.bytes_per_second - recorded.bytes_per_second) <= kSameIdeal * recorded.bytes_per_second;
}

Result<std::string> boot_id() {
    auto id = read_file("/proc/sys/kernel/random/boot_id");
    if (!id) return id;
    id->erase(std::min(id->find('\n'), id->size()));
    return id;
}

Result<FileDescriptor> lock(const std::string& state_directory) {
    auto file = lock_file(state_directory + "/lock", 0600);
    if (file || file.error().code != ErrorCode::already_exists) return file;
    return fail(ErrorCode::already_exists,
                "another larder-allocator uses the state directory " + state_directory + ": " + file.error().message);
}

// Returns how long the leases on record, or those that have to be waited out, may still be in force.
std::int64_t longest_left_ns(const StoredState& stored, std::int64_t now_ns) {
    std::int64_t until_ns = stored.run.no_lease_before_ns.value_or(now_ns);
    for (const auto& [node, leases] : stored.record.leases) {
        if (!leases) continue;
        for (const Lease& lease : *leases) until_ns = std::max(until_ns, lease.expires_ns);
    }
    return std::clamp<std::int64_t>(until_ns - now_ns, 0, kLeaseMax_ns);
}

}  // namespace

Result<std::unique_ptr<StateStore>> StateStore::open(const StateStoreOptions& options, std::int64_t now_ns) {
    std::unique_ptr<StateStore> store(new StateStore);
    std::vector<Row> moved;
    if (!options.shared_settings) {
        if (auto opened = store->open_cluster(options, moved); !opened) return std::unexpected(opened.error());
    }
    if (auto taken = store->open_settings(options, std::move(moved)); !taken) {
        return std::unexpected(taken.error());
    }
    const auto begun = options.shared_settings ? store->begin_term(options, now_ns) : store->begin_run(options, now_ns);
    if (!begun) return std::unexpected(begun.error());
    return store;
}

// Adds to `moved` the settings that an older version had in cluster/.
Result<void> StateStore::open_cluster(const StateStoreOptions& options, std::vector<Row>& moved) {
    std::error_code error;
    fs::create_directories(options.directory, error);
    if (error) return fail_errno(error.value(), "make state directory " + options.directory);
    auto locked = lock(options.directory);
    if (!locked) return std::unexpected(locked.error());
    lock_ = std::move(*locked);
    const std::string moved_file = options.directory + "/" + kMovedFile;
    if (!options.opens_moved && fs::exists(moved_file)) {
        const auto where = read_file(moved_file);
        return fail(ErrorCode::unsupported, "the state in " + options.directory + " was moved to " +
                                                (where ? where->substr(0, where->find('\n')) : "another place") +
                                                ": start the allocator with that, or remove " + moved_file +
                                                " if no allocator leads there and none will");
    }
    for (const char* environment : {"/settings", "/cluster"}) {
        if (!options.check_damage) break;
        if (auto sound = options.check_damage(options.directory + environment); !sound) return sound;
    }
    StoredState& stored = stored_;
    const auto take = [&stored, &moved](std::string_view key, std::string_view text) -> Result<void> {
        // Versions 1 and 2 kept settings in cluster/.
        if (is_durable(key)) {
            moved.push_back({std::string(key), std::string(text)});
            return {};
        }
        auto taken = read_row(stored, key, text);
        if (taken || !is_reported_again(key)) return taken;
        log_warn("left out a part of the state that cannot be parsed: reports bring it again",
                 {{"error", taken.error().message}});
        return {};
    };
    const auto lost = [&stored, &moved](const std::string& why, const std::string& aside) {
        stored = {};
        moved.clear();
        log_error("the record of reports, the plan and leases is damaged: starting without it until nodes report again",
                  {{"damage", why}, {"put_aside_as", aside}});
    };
    auto rows = open_lmdb_rows({.directory = options.directory + "/cluster",
                                .durability = Durability::process,
                                .map_bytes = options.map_bytes,
                                .version = kStateVersion,
                                .program = "larder-allocator",
                                .take = take,
                                .lost = lost});
    if (!rows) return std::unexpected(rows.error());
    rows_ = std::move(*rows);
    return {};
}

Result<void> StateStore::open_settings(const StateStoreOptions& options, std::vector<Row> moved) {
    StoredState found;
    std::set<std::string, std::less<>> keys;
    const auto take = [&](std::string_view key, std::string_view text) -> Result<void> {
        keys.emplace(key);
        auto taken = read_row(found, key, text);
        const bool is_rates = key.starts_with(kRatesPrefix);
        if (taken || !(is_rates || is_reported_again(key))) return taken;
        log_warn(is_rates ? "rates of leases on record cannot be read: all leases are waited out"
                          : "left out a measurement of a job that cannot be read: it is made again",
                 {{"error", taken.error().message}});
        if (is_rates) unreadable_rates_.push_back({std::string(key), std::nullopt});
        return {};
    };
    const auto lost = [&](const std::string& why, const std::string& aside) {
        found = {};
        keys.clear();
        unreadable_rates_.clear();
        log_error("the record of registered jobs, pins and the remote's bandwidth is damaged: starting without them",
                  {{"damage", why}, {"put_aside_as", aside}});
    };
    const OpenRows open = options.shared_settings ? options.shared_settings : open_lmdb_rows;
    auto settings = open({.directory = options.directory + "/settings",
                          .map_bytes = options.map_bytes,
                          .version = kStateVersion,
                          .noun = "settings",
                          .program = "larder-allocator",
                          .take = take,
                          .damaged = [&](std::string_view key, const Error& error) -> Result<void> {
                              // A row's text is never empty: `take` handles this one as a row that cannot be read.
                              if (auto taken = take(key, ""); !taken) return std::unexpected(error);
                              log_warn("a row of the settings is damaged", {{"error", error.message}});
                              return {};
                          },
                          .lost = lost});
    if (!settings) return std::unexpected(settings.error());
    settings_ = std::move(*settings);
    // An earlier start may have ended before moving all rows.
    std::vector<Row> rows_to_remove = moved;
    for (Row& row : rows_to_remove) row.text.reset();
    std::erase_if(moved, [&](const Row& row) { return keys.contains(row.key); });
    for (const Row& row : moved) {
        if (auto taken = read_row(found, row.key, *row.text); !taken) return taken;
    }
    if (!rows_to_remove.empty()) {
        if (auto written = settings_->write(moved); !written) return written;
        if (auto written = rows_->write(rows_to_remove); !written) return written;
    }
    stored_.record.jobs = std::move(found.record.jobs);
    stored_.record.pins = std::move(found.record.pins);
    stored_.record.remote = found.record.remote;
    stored_.record.floors = std::move(found.record.floors);
    if (options.shared_settings) {
        stored_.run = found.run;
        stored_.record.rates = std::move(found.record.rates);
        stored_.record.ideals = std::move(found.record.ideals);
        stored_.record.epochs = std::move(found.record.epochs);
        for (const auto& [job, ideal] : stored_.record.ideals) recorded_ideals_[job] = ideal.value_or(MeasuredIdeal{});
    }
    writer_ = std::make_unique<RowWriter>([this](std::span<const Row> changed) { return settings_->write(changed); },
                                          settings_->rows_at_once(), settings_->bytes_at_once());
    return {};
}

// Records the boot whose clock times leases from now on. Leases timed by another boot's clock have to be waited out.
Result<void> StateStore::begin_run(const StateStoreOptions& options, std::int64_t now_ns) {
    StateRun run{.boot = options.boot_id, .no_lease_before_ns = stored_.run.no_lease_before_ns};
    if (run.boot.empty()) {
        auto id = boot_id();
        if (!id) return std::unexpected(id.error());
        run.boot = std::move(*id);
    }
    ClusterRecord& record = stored_.record;
    ClusterRecord change;
    longest_lease_ns_ = options.lease_ns;
    if (!rows_->is_new() && run.boot == stored_.run.boot) {
        longest_lease_ns_ = std::max(longest_lease_ns_, longest_left_ns(stored_, now_ns));
    } else {
        longest_lease_ns_ = std::max(longest_lease_ns_, stored_.run.lease_ns);
        const std::int64_t wait_ns = options.lease_holders_end_with_process ? 0 : longest_lease_ns_;
        run.no_lease_before_ns = now_ns + wait_ns;
        change = expire_leases(record, now_ns);
        if (wait_ns > 0) {
            log_info(
                rows_->is_new()
                    ? "no leases are on record: the first are granted when earlier leases would have expired"
                    : "the machine was rebooted: the first leases are granted when earlier leases would have expired",
                {{"wait", format_duration_ns(wait_ns)}});
        }
    }
    record.no_lease_before_ns = run.no_lease_before_ns;
    // The next boot has to wait for leases of earlier runs, too, until they have expired.
    run.lease_ns = options.lease_ns;
    if (longest_lease_ns_ > options.lease_ns) settled_run_ = row_of(run);
    settled_ns_ = now_ns + longest_lease_ns_ + options.lease_ns;
    run.lease_ns = longest_lease_ns_;
    std::vector<Row> rows = rows_of(change);
    rows.push_back(row_of(run));
    return rows_->write(rows);
}

// The times of leases of earlier leaders are by other machines' clocks. They count by the rates on record, or have to
// be waited out. Records how long the longest of them lasts.
Result<void> StateStore::begin_term(const StateStoreOptions& options, std::int64_t now_ns) {
    StateRun found = stored_.run;
    if (!unreadable_rates_.empty()) found.rates_recorded = false;
    const std::int64_t longest_ns = std::max(options.lease_ns, found.lease_ns);
    expire_leases(stored_.record, now_ns);
    if (found.rates_recorded) {
        carry_over_rates(stored_.record, now_ns + longest_ns);
    } else {
        stored_.record.no_lease_before_ns = now_ns + longest_ns;
        log_info("the first leases are granted when those of an earlier leader would have expired",
                 {{"wait", format_duration_ns(longest_ns)}});
    }
    const std::uint64_t term = found.term + 1;
    stored_.record.lease_numbers_above = term * kLeaseNumbersOfTerm;
    StateRun run{.boot = "",
                 .lease_ns = options.lease_ns,
                 .no_lease_before_ns = std::nullopt,
                 .rates_recorded = true,
                 .term = term};
    if (longest_ns > options.lease_ns || !found.rates_recorded) settled_run_ = row_of(run);
    settled_ns_ = now_ns + longest_ns + options.lease_ns;
    run.lease_ns = longest_ns;
    run.rates_recorded = found.rates_recorded;
    std::vector<Row> rows = std::exchange(unreadable_rates_, {});
    rows.push_back(row_of(run));
    return settings_->write(rows);
}

// Returns the rows of measured f* that differ from those on record by more than they do from one measurement to the
// next.
std::vector<Row> StateStore::changed_ideals(const ClusterRecord& change) {
    {
        const std::lock_guard lock(writes_->mutex);
        for (const std::string& job : std::exchange(writes_->lost_ideals, {})) recorded_ideals_.erase(job);
    }
    ClusterRecord changed;
    for (const auto& [job, ideal] : change.ideals) {
        const auto recorded = recorded_ideals_.find(job);
        const bool is_recorded = recorded != recorded_ideals_.end();
        if (!ideal && !is_recorded) continue;
        if (ideal && is_recorded && is_same_ideal(*ideal, recorded->second)) continue;
        changed.ideals[job] = ideal;
        if (ideal) {
            recorded_ideals_[job] = *ideal;
        } else {
            recorded_ideals_.erase(recorded);
        }
    }
    return rows_of(changed);
}

// Returns the rows of epochs, and those that could not be written before.
std::vector<Row> StateStore::changed_epochs(const ClusterRecord& change) const {
    std::vector<Row> rows = rows_of({.epochs = change.epochs});
    const std::lock_guard lock(writes_->mutex);
    for (auto at = writes_->keys.lower_bound(kEpochsPrefix);
         at != writes_->keys.end() && at->first.starts_with(kEpochsPrefix); ++at) {
        const auto& [name, key] = *at;
        if (key.failed == 0 || key.pending > 0 || change.epochs.contains(name.substr(kEpochsPrefix.size()))) continue;
        rows.push_back({name, key.text});
    }
    return rows;
}

Result<void> StateStore::save(const ClusterRecord& change) {
    const auto is_settled = [&](const Lease& lease) { return !lease.rates.empty() && lease.expires_ns >= settled_ns_; };
    const auto has_settled = [&](const auto& entry) {
        return entry.second && std::ranges::any_of(*entry.second, is_settled);
    };
    const bool settles = settled_run_ && std::ranges::any_of(change.leases, has_settled);
    std::vector<Row> durable_rows;
    if (rows_ == nullptr) {
        durable_rows = durable_rows_of(change);
        std::ranges::move(changed_ideals(change), std::back_inserter(durable_rows));
        std::ranges::move(changed_epochs(change), std::back_inserter(durable_rows));
    } else {
        std::vector<Row> rows = rows_of(change);
        const auto durable = std::ranges::stable_partition(rows, [](const Row& row) { return !is_durable(row.key); });
        durable_rows.assign(std::make_move_iterator(durable.begin()), std::make_move_iterator(durable.end()));
        rows.erase(durable.begin(), durable.end());
        if (settles) rows.push_back(*settled_run_);
        if (!rows.empty()) {
            if (auto written = rows_->write(rows); !written) return written;
        }
        if (settles) settled_run_.reset();
    }
    if (writes_->settled_run_written) settled_run_.reset();
    const bool has_settled_run = rows_ == nullptr && settles && settled_run_ && !writes_->settled_run_pending;
    if (has_settled_run) durable_rows.push_back(*settled_run_);
    if (!durable_rows.empty()) post(std::move(durable_rows), change.promised_to, has_settled_run);
    return {};
}

void StateStore::post(std::vector<Row> rows, const std::string& promised_to, bool has_settled_run) {
    Writes::Post post{.has_settled_run = has_settled_run};
    for (const Row& row : rows) {
        const std::string_view key = row.key;
        if (key.starts_with(kIdealPrefix)) post.ideals.emplace_back(key.substr(kIdealPrefix.size()));
        // Other rates and floors become less: their nodes may hear of that before it is on record.
        const bool is_promise = key.starts_with(kFloorPrefix) || key.starts_with(kRatesPrefix);
        if (is_setting(row) || (is_promise && key.substr(key.find('/') + 1) == promised_to) ||
            key.starts_with(kEpochsPrefix)) {
            post.tracked.push_back(row);
        }
    }
    writes_->posted(post);
    writer_->post(std::move(rows), [writes = writes_, post = std::move(post)](const Result<void>& written) {
        writes->answered(post, written);
    });
}

void StateStore::Writes::posted(Post& post) {
    const std::lock_guard lock(mutex);
    post.number = ++posts;
    for (const Row& row : post.tracked) {
        Key& key = keys[row.key];
        settings -= key.is_setting ? 1 : 0;
        key.is_setting = is_setting(row);
        settings += key.is_setting ? 1 : 0;
        ++key.pending;
    }
    if (post.has_settled_run) settled_run_pending = true;
}

void StateStore::Writes::answered(const Post& post, const Result<void>& written) {
    const std::lock_guard lock(mutex);
    if (!written) lost_ideals.insert(lost_ideals.end(), post.ideals.begin(), post.ideals.end());
    for (const Row& row : post.tracked) {
        const auto at = keys.find(row.key);
        Key& key = at->second;
        --key.pending;
        key.failed = written ? 0 : post.number;
        key.error = written ? std::nullopt : std::optional(written.error());
        key.text = written ? std::nullopt : row.text;
        if (!written || key.pending > 0) continue;
        settings -= key.is_setting ? 1 : 0;
        keys.erase(at);
    }
    if (!post.has_settled_run) return;
    if (written) settled_run_written = true;
    settled_run_pending = false;
}

Result<void> StateStore::Writes::failure_of(const std::map<std::string, std::uint64_t>& withdrawn) {
    const std::lock_guard lock(mutex);
    for (const auto& [name, number] : withdrawn) {
        const auto found = keys.find(name);
        if (found != keys.end() && found->second.failed > number) return std::unexpected(*found->second.error);
    }
    return {};
}

void StateStore::when_durable(RowWriter::Done then) {
    std::vector<Row> again;
    std::set<std::string> withdrawn;
    {
        const std::lock_guard lock(writes_->mutex);
        for (const auto& [name, key] : writes_->keys) {
            if (key.failed == 0 || key.pending > 0 || !key.is_setting) continue;
            again.push_back({name, key.text});
            if (key.failed <= key.withdrawn) withdrawn.insert(name);
        }
    }
    for (Row& row : again) post({std::move(row)}, "", false);
    for (const std::string& setting : withdrawn) withdraw_setting(setting);
    // A failure counts that is not withdrawn by now, even if it is withdrawn before the answer.
    std::map<std::string, std::uint64_t> settings;
    {
        const std::lock_guard lock(writes_->mutex);
        for (const auto& [name, key] : writes_->keys) {
            if (key.is_setting) settings[name] = key.withdrawn;
        }
    }
    writer_->post({}, [writes = writes_, settings = std::move(settings), then = std::move(then)](const Result<void>&) {
        then(writes->failure_of(settings));
    });
}

void StateStore::withdraw_setting(const std::string& setting) {
    const std::lock_guard lock(writes_->mutex);
    const auto found = writes_->keys.find(setting);
    if (found != writes_->keys.end()) found->second.withdrawn = writes_->posts;
}

bool StateStore::all_durable() const {
    return writes_->settings == 0;
}

void StateStore::when_promised(const std::string& node, RowWriter::Done then) {
    std::map<std::string, std::uint64_t> promises;
    {
        const std::lock_guard lock(writes_->mutex);
        for (const std::string& name : promises_to(node)) {
            const auto found = writes_->keys.find(name);
            promises[name] = found == writes_->keys.end() ? 0 : found->second.withdrawn;
        }
    }
    writer_->post({}, [writes = writes_, promises = std::move(promises), then = std::move(then)](const Result<void>&) {
        then(writes->failure_of(promises));
    });
}

bool StateStore::is_promised(const std::string& node) const {
    const std::lock_guard lock(writes_->mutex);
    const auto names = promises_to(node);
    return std::ranges::all_of(names, [&](const std::string& name) {
        const auto found = writes_->keys.find(name);
        return found == writes_->keys.end() ||
               (found->second.pending == 0 && found->second.failed <= found->second.withdrawn);
    });
}

void StateStore::withdraw_promises(const std::string& node) {
    const std::lock_guard lock(writes_->mutex);
    for (const std::string& name : promises_to(node)) {
        const auto found = writes_->keys.find(name);
        if (found != writes_->keys.end()) found->second.withdrawn = writes_->posts;
    }
}

}  // namespace larder::allocator
