#include "allocator/service/state_store.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file_lock.h"
#include "base/server/logging.h"
#include "base/units.h"

namespace larder::allocator {
namespace {

namespace fs = std::filesystem;

// Of what nodes report, and so is no reason to lose the rest.
bool comes_again(std::string_view key) {
    return key.starts_with("node/") || key.starts_with("quotas/") || key.starts_with("ideal/");
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

}  // namespace

Result<std::unique_ptr<StateStore>> StateStore::open(const StateStoreOptions& options, std::int64_t now_ns) {
    std::error_code error;
    fs::create_directories(options.directory, error);
    if (error) return fail_errno(error.value(), "make state directory " + options.directory);
    std::unique_ptr<StateStore> store(new StateStore);
    auto locked = lock(options.directory);
    if (!locked) return std::unexpected(locked.error());
    store->lock_ = std::move(*locked);
    StoredState& stored = store->stored_;
    const auto take = [&stored](std::string_view key, std::string_view text) -> Result<void> {
        auto taken = read_row(stored, key, text);
        if (taken || !comes_again(key)) return taken;
        log_warn("a part of the state is not understood, and left out: reports bring it again",
                 {{"error", taken.error().message}});
        return {};
    };
    const auto lost = [&stored](const std::string& why, const std::string& aside) {
        stored = {};
        log_error("the state is damaged: starting afresh, without registered jobs and pins",
                  {{"damage", why}, {"put_aside_as", aside}});
    };
    auto rows = RowStore::open({.directory = options.directory + "/cluster",
                                .map_bytes = options.map_bytes,
                                .version = kStateVersion,
                                .program = "larder-allocator",
                                .take = take,
                                .lost = lost});
    if (!rows) return std::unexpected(rows.error());
    store->rows_ = std::move(*rows);
    if (auto begun = store->begin_run(options, now_ns); !begun) return std::unexpected(begun.error());
    return store;
}

// Says whose clock the leases are told in from now on; those of another clock have to be waited out.
Result<void> StateStore::begin_run(const StateStoreOptions& options, std::int64_t now_ns) {
    StateRun run{
        .boot = options.boot_id, .lease_ns = options.lease_ns, .no_lease_before_ns = stored_.run.no_lease_before_ns};
    if (run.boot.empty()) {
        auto id = boot_id();
        if (!id) return std::unexpected(id.error());
        run.boot = std::move(*id);
    }
    ClusterRecord& record = stored_.record;
    ClusterRecord change;
    if (rows_->afresh() || run.boot != stored_.run.boot) {
        const std::int64_t wait_ns = std::max(options.lease_ns, stored_.run.lease_ns);
        run.no_lease_before_ns = now_ns + wait_ns;
        for (auto& [node, leases] : record.leases) {
            for (Lease& lease : *leases) lease.expires_ns = now_ns;
            change.leases[node] = leases;
        }
        log_warn(rows_->afresh() ? "no record of what was leased before: nothing is leased for as long as a lease lasts"
                                 : "the machine was started anew: nothing is leased for as long as a lease lasts",
                 {{"wait", format_duration_ns(wait_ns)}});
    }
    record.no_lease_before_ns = run.no_lease_before_ns;
    std::vector<Row> rows = rows_of(change);
    rows.push_back(row_of(run));
    return rows_->write(rows);
}

Result<void> StateStore::save(const ClusterRecord& change) {
    return rows_->write(rows_of(change));
}

}  // namespace larder::allocator
