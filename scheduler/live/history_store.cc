#include "scheduler/live/history_store.h"

#include <boost/json.hpp>

#include <exception>
#include <filesystem>
#include <utility>

#include "base/file_lock.h"
#include "base/server/json_reader.h"
#include "base/server/logging.h"
#include "scheduler/live/json.h"

namespace larder::scheduler {
namespace json = boost::json;
namespace {

// Keys of a record that may be missing do not raise it.
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kNumberDigits = 20;
constexpr std::string_view kJob = "job/";
constexpr std::string_view kTenant = "tenant/";

Result<FileDescriptor> lock(const std::string& directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) return fail_errno(error.value(), "make " + directory);
    auto file = lock_file(directory + "/queue.lock", 0600);
    if (file || file.error().code != ErrorCode::already_exists) return file;
    return fail(ErrorCode::already_exists,
                "another larder-allocator runs the jobs of " + directory + ": " + file.error().message);
}

std::string key_of(JobId job) {
    const std::string number = std::to_string(job);
    return std::string(kJob) + std::string(kNumberDigits - number.size(), '0') + number;
}

}  // namespace

Result<std::unique_ptr<HistoryStore>> HistoryStore::open(const std::string& directory,
                                                         std::vector<std::string> gpu_types) {
    std::unique_ptr<HistoryStore> store(new HistoryStore);
    auto locked = lock(directory);
    if (!locked) return std::unexpected(locked.error());
    store->lock_ = std::move(*locked);
    store->gpu_types_ = std::move(gpu_types);
    HistoryStore& into = *store;
    auto rows = RowStore::open(
        {.directory = directory + "/queue",
         .database = "jobs",
         .map_bytes = std::uint64_t{4} << 30,
         .version = kVersion,
         .noun = "queue",
         .program = "larder-allocator",
         .take = [&into](std::string_view key, std::string_view text) { return into.take(key, text); },
         .lost =
             [&into](const std::string& why, const std::string& aside) {
                 into.found_ = {};
                 log_error(
                     "the queue is damaged: starting afresh, without submitted jobs and history; processes of "
                     "jobs go on unseen",
                     {{"damage", why}, {"put_aside_as", aside}});
             }});
    if (!rows) return std::unexpected(rows.error());
    store->rows_ = std::move(*rows);
    return store;
}

Result<void> HistoryStore::take(std::string_view key, std::string_view text) {
    const auto damaged = [&](const std::string& why) {
        return fail(ErrorCode::corrupt, "row \"" + std::string(key) + "\": " + why);
    };
    try {
        const auto object = parse_json_object(text, "it");
        if (!object) return damaged(object.error().message);
        if (key.starts_with(kJob)) {
            JobRecord job = job_of_row(*object, gpu_types_);
            const JobId id = job.id;
            found_.jobs[id] = std::move(job);
        } else if (key.starts_with(kTenant)) {
            found_.tenants[std::string(key.substr(kTenant.size()))] = gpu_time_of_row(*object);
        } else {
            return damaged("it is of an unknown kind");
        }
    } catch (const std::exception& error) {
        return damaged(error.what());
    }
    return {};
}

Result<void> HistoryStore::save(const LiveRecord& change) {
    std::vector<Row> rows;
    for (const auto& [id, job] : change.jobs) {
        rows.push_back({key_of(id), std::nullopt});
        if (job) rows.back().text = json::serialize(row_json(*job, gpu_types_));
    }
    for (const auto& [tenant, use] : change.tenants) {
        rows.push_back({std::string(kTenant) + tenant, json::serialize(row_json(use))});
    }
    return rows_->write(rows);
}

}  // namespace larder::scheduler
