#pragma once

// The quotas of the node's datasets. The quotas of all datasets, those being added or removed included, never exceed
// the node's capacity. An allocator sets the quotas (`apply_plan`), except those that were set by hand; a quota set by
// hand takes its room from the others. Control thread only. Nothing here blocks.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "cache/control/daemon_config.h"
#include "cache/control/datasets.h"
#include "cache/shard/statistics.h"
#include "cache/store/store.h"

namespace larder::cache {

class Quotas {
public:
    using Done = std::function<void(Result<void>)>;

    // The arguments must outlive the Quotas.
    Quotas(const DaemonConfig& config, const Clock& clock, Datasets& datasets)
        : config_(config), clock_(clock), datasets_(datasets) {}

    // Sets a quota by hand, at once; the allocator does not change it. Lowers quotas that nobody set by hand to make
    // room. Calls `done` when the quota is saved. nullopt: returns the quota to the allocator, if there is one.
    void set(const std::string& name, std::optional<Quota> quota, Done done);
    // Applies the quotas that a config declares for datasets: all of them or none.
    Result<void> apply(const DaemonConfig& config);
    // Applies an allocator's quotas, which are based on a report made at `reported_ns`: all of them or none. Skips
    // unknown datasets and datasets whose quota was set by hand. Skips the whole plan if a quota was set after the
    // report.
    Result<void> apply_plan(const std::map<std::string, Quota>& quotas, std::int64_t reported_ns);

    // Fails if the quota, set by hand, cannot fit. The error names the largest quota that can.
    Result<void> check_room(const std::string& name, Quota quota) const;
    // Lowers quotas set by the allocator so that a quota set by hand fits.
    Result<void> make_room(const std::string& name, Quota quota);

    // True if the allocator has not yet set the quota of some dataset.
    bool any_unassigned() const;
    // The sum of the quotas of datasets that are being added or removed.
    Quota changing() const;
    // Notes how much of the quotas is in use. Call it about once a second.
    void note_use(const ShardStatistics& statistics);

private:
    // Sums of the other datasets' quotas: `held` were set by hand, `dealt` by the allocator.
    struct QuotasOfOthers {
        Quota held;
        Quota dealt;
    };
    // Bytes of a dataset's quota in use, and its number of sessions.
    struct DatasetUse {
        Quota bytes;
        std::uint32_t sessions = 0;
    };

    Result<void> check_capacity(const std::map<std::string, Quota>& changes) const;
    QuotasOfOthers quotas_of_others(const std::string& name) const;
    Result<void> hold(const std::map<std::string, Quota>& quotas);
    void lower_dealt_quotas(std::uint64_t Quota::* tier, std::uint64_t bytes);
    void apply_quota(NodeDataset& dataset, Quota quota);

    const DaemonConfig& config_;
    const Clock& clock_;
    Datasets& datasets_;
    std::int64_t set_by_hand_ns_ = 0;           // when a quota was last set by hand
    std::map<std::uint64_t, DatasetUse> used_;  // by dataset id, as of about a second ago
};

}  // namespace larder::cache
