#include "cache/control/scans.h"

#include <boost/json.hpp>
#include <unistd.h>

#include <limits>
#include <utility>

#include "base/server/json_text.h"
#include "base/server/logging.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

constexpr std::int64_t kScanPoll_ns = 20'000'000;
// A cancelled task waits this long for the reads in flight. Reads from a mount that hangs do not end.
constexpr std::int64_t kCancelTimeout_ns = 2'000'000'000;
// A warm task waits this long for the allocator to set a new dataset's quota, which usually takes a second.
constexpr std::int64_t kQuotaAssignmentTimeout_ns = 10'000'000'000;

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

std::string warm_result(const std::string& name, const ScanProgress& scan, const RemotePlace* place,
                        bool quota_assigned, bool quota_held) {
    const WarmPlan& plan = scan.plan;
    const WarmOutcome& outcome = scan.outcome;
    const std::uint64_t missed =
        outcome.disk_full_blocks + outcome.disk_failed_blocks + outcome.failed_blocks + outcome.not_asked_blocks;
    // A warm-up that has nothing to do because nobody set a quota has not done what its user wants.
    const bool has_quota = quota_held || plan.quota_memory_bytes + plan.quota_disk_bytes > 0 || plan.blocks == 0;
    const bool reached_plan =
        has_quota && missed == 0 && outcome.cached_blocks >= plan.cached_blocks + plan.promised_blocks;
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
    result["quota"] =
        json::object{{"memory_bytes", outcome.quota_memory_bytes}, {"disk_bytes", outcome.quota_disk_bytes}};
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
    result["old_version_blocks"] = outcome.old_version_blocks;
    result["quota_assigned"] = quota_assigned;
    result["disk_problem"] = outcome.disk_problem;
    result["notes"] = notes_of(scan, place);
    return json_text(result);
}

}  // namespace

Result<std::uint64_t> Scans::start(const std::string& name, ScanKind kind) {
    const auto found = datasets_.find(name);
    if (!found) return std::unexpected(found.error());
    if (auto idle = datasets_.check_idle(**found); !idle) return std::unexpected(idle.error());
    if (auto online = datasets_.check_online(**found); !online) return std::unexpected(online.error());
    const auto bucket = job_limits_.bucket(kScanJob, {.uid = ::geteuid(), .is_unlimited = true}, clock_.now_ns());
    if (!bucket) return std::unexpected(bucket.error());
    Tasks::Work work{.kind = kind == ScanKind::warm ? "warm" : "verify", .dataset = name, .unit = "blocks"};
    const auto quota_assigned = kind == ScanKind::warm ? (*found)->quota_assigned : nullptr;
    const std::shared_ptr<const RemotePlace> place = (*found)->place;
    const bool quota_held = (*found)->record.quota_held;
    work.run = [this, name, kind, quota_assigned, quota_held, place, id = (*found)->record.dataset_id,
                shard = (*found)->shard,
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
        std::int64_t give_up_ns = std::numeric_limits<std::int64_t>::max();
        for (bool finished = false; !finished && clock_.now_ns() < give_up_ns;) {
            if (stop.stop_requested() && !scan->cancel.exchange(true)) {
                shard->post([](Shard&) {});  // wakes the shard
                give_up_ns = clock_.now_ns() + kCancelTimeout_ns;
            }
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
        return warm_result(name, *scan, place.get(), quota_assigned == nullptr || *quota_assigned, quota_held);
    };
    auto task = tasks_.start(std::move(work));
    if (task) datasets_.at(name).task = *task;
    return task;
}

}  // namespace larder::cache
