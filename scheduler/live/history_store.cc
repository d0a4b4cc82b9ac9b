#include "scheduler/live/history_store.h"

#include <boost/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <exception>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/file_lock.h"
#include "base/server/json_reader.h"
#include "base/server/json_text.h"
#include "base/server/lmdb_check.h"
#include "base/server/lmdb_rows.h"
#include "base/server/logging.h"
#include "scheduler/live/json.h"

namespace larder::scheduler {
namespace json = boost::json;
namespace {

// New keys that a record may lack do not raise the version.
constexpr std::uint64_t kVersion = 4;
// One write of `job-numbers` reserves this many numbers. If the queue is lost, at most that many numbers are skipped.
constexpr JobId kNumbersReserved = 100;
// Address space. Rows take a part of it only (JobQueue::kBytesMax), as LMDB needs free pages for each change.
constexpr std::uint64_t kMapBytes = std::uint64_t{16} << 30;
static_assert(kMapBytes >= 8 * JobQueue::kBytesMax);
constexpr const char* kDatabase = "jobs";
constexpr std::string_view kQueue = "queue";
constexpr std::string_view kNumbers = "numbers";
constexpr std::size_t kNumberDigits = 20;
constexpr std::string_view kJob = "job/";
constexpr std::string_view kTenant = "tenant/";
// Before the jobs, whose rows name types of GPUs.
constexpr std::string_view kNode = "agent-node/";
static_assert(kNode < kJob);
constexpr std::string_view kDrain = "drained-node/";

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

JobId number_of_key(std::string_view key) {
    JobId number = 0;
    if (key.starts_with(kJob)) std::from_chars(key.data() + kJob.size(), key.data() + key.size(), number);
    return number;
}

Row row_of_last(JobId number) {
    return {std::string(kNumbers), json_text(json::object{{"last", number}})};
}

// Draws a random identity. It is never a number, because jobs' directories of older versions are named by numbers.
Result<std::string> draw_identity() {
    std::array<unsigned char, 8> drawn{};
    if (::getentropy(drawn.data(), drawn.size()) != 0) return fail_errno(errno, "draw an identity for the queue");
    std::string text = "q-";
    for (const unsigned char byte : drawn) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

std::string numbers_path(const std::string& directory) {
    return directory + "/job-numbers";
}

Result<JobId> read_reserved(const std::string& directory) {
    const std::string path = numbers_path(directory);
    const auto text = read_file(path);
    if (!text && text.error().code == ErrorCode::not_found) return 0;
    if (!text) return std::unexpected(text.error());
    JobId reserved = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), reserved);
    if (error == std::errc{} && std::string_view(end) == "\n") return reserved;
    return fail(ErrorCode::corrupt, path +
                                        " has no number: write one there that no job has reached, or remove the "
                                        "file if there are no jobs yet");
}

// Reads the rows in an LMDB environment that a queue has, unless it is damaged.
Result<void> read_rows(const std::string& environment, std::vector<Row>& rows) {
    const std::array<std::string_view, 1> databases{kDatabase};
    const auto damage = find_lmdb_damage(environment, databases);
    if (!damage) return std::unexpected(damage.error());
    if (*damage) return fail(ErrorCode::corrupt, "the queue in " + environment + " is damaged: " + **damage);
    std::string lost;
    const auto opened = open_lmdb_rows({.directory = environment,
                                        .database = kDatabase,
                                        .map_bytes = kMapBytes,
                                        .version = kVersion,
                                        .noun = kQueue,
                                        .program = "larder-allocator",
                                        .take = [&](std::string_view key, std::string_view text) -> Result<void> {
                                            rows.push_back({std::string(key), std::string(text)});
                                            return {};
                                        },
                                        .lost = [&](const std::string& why, const std::string&) { lost = why; }});
    if (!opened) return std::unexpected(opened.error());
    if (!lost.empty()) return fail(ErrorCode::corrupt, "the queue in " + environment + " is damaged: " + lost);
    return {};
}

// Returns the rows of a change. `last`, if given, is the highest number of a job so far.
std::vector<Row> rows_of(const LiveRecord& change, std::span<const std::string> gpu_types, std::optional<JobId> last) {
    std::vector<Row> rows;
    for (const auto& [name, node] : change.nodes) {
        rows.push_back({std::string(kNode) + name, std::nullopt});
        if (!node) continue;
        json::object row = row_json(*node);
        row["is_usable"] = node->usable;
        rows.back().text = json_text(row);
    }
    for (const auto& [name, drain] : change.drains) {
        rows.push_back({std::string(kDrain) + name, std::nullopt});
        if (drain) rows.back().text = json_text(json::object{{"by", drain->by}, {"since_unix_s", drain->since_s}});
    }
    for (const auto& [id, job] : change.jobs) {
        rows.push_back({key_of(id), std::nullopt});
        if (job) rows.back().text = json_text(row_json(*job, gpu_types));
    }
    if (last) rows.push_back(row_of_last(*last));
    for (const auto& [tenant, use] : change.tenants) {
        rows.push_back({std::string(kTenant) + tenant, json_text(row_json(use))});
    }
    return rows;
}

}  // namespace

Result<std::unique_ptr<HistoryStore>> HistoryStore::open(HistoryStoreOptions options) {
    std::unique_ptr<HistoryStore> store(new HistoryStore(std::move(options)));
    const std::string& directory = store->options_.directory;
    const bool is_shared = static_cast<bool>(store->options_.shared_rows);
    if (!is_shared) {
        auto locked = lock(directory);
        if (!locked) return std::unexpected(locked.error());
        store->lock_ = std::move(*locked);
    }
    HistoryStore& into = *store;
    const std::vector<std::string> configured_types = store->options_.gpu_types;
    const OpenRows open = is_shared ? store->options_.shared_rows : open_lmdb_rows;
    auto rows = open({.directory = directory + "/queue",
                      .database = kDatabase,
                      .map_bytes = kMapBytes,
                      .version = kVersion,
                      .noun = kQueue,
                      .program = "larder-allocator",
                      .take = [&into](std::string_view key, std::string_view text) { return into.load_row(key, text); },
                      .lost =
                          [&into, configured_types](const std::string& why, const std::string& aside) {
                              into.found_ = {};
                              into.options_.gpu_types = configured_types;
                              into.identity_.clear();
                              into.last_ = 0;
                              log_error(
                                  "the queue is damaged: starting without submitted jobs and history; running "
                                  "processes of jobs are no longer tracked",
                                  {{"damage", why}, {"put_aside_as", aside}});
                          }});
    if (!rows) return std::unexpected(rows.error());
    store->rows_ = std::move(*rows);
    if (auto given = store->set_identity(); !given) return std::unexpected(given.error());
    store->writer_ = std::make_unique<RowWriter>([&into](std::span<const Row> changed) { return into.commit(changed); },
                                                 into.rows_->rows_at_once(), into.rows_->bytes_at_once());
    return store;
}

HistoryStore::~HistoryStore() = default;

Result<HistoryStore::ToMove> HistoryStore::read_to_move(const std::string& directory) {
    ToMove found;
    const std::string environment = directory + "/queue";
    const bool has_rows = std::filesystem::exists(environment);
    if (!has_rows && !std::filesystem::exists(numbers_path(directory))) return found;
    auto locked = lock(directory);
    if (!locked) return std::unexpected(locked.error());
    found.lock = std::move(*locked);
    const auto reserved = read_reserved(directory);
    if (!reserved) return std::unexpected(reserved.error());
    found.queue = MovedRows{.noun = std::string(kQueue), .version = kVersion, .rows = {}};
    std::vector<Row>& rows = found.queue->rows;
    if (has_rows) {
        if (auto read = read_rows(environment, rows); !read) return std::unexpected(read.error());
    }
    // The queue may be lost, or of version 1. Its numbers are not given again.
    if (std::ranges::find(rows, kNumbers, &Row::key) == rows.end()) rows.push_back(row_of_last(*reserved));
    return found;
}

Result<void> HistoryStore::set_identity() {
    // Shared rows are lost together with this file, if at all.
    const auto reserved = options_.shared_rows ? Result<JobId>(0) : read_reserved(options_.directory);
    if (!reserved) return std::unexpected(reserved.error());
    reserved_ = *reserved;
    if (!found_.jobs.empty()) last_ = std::max(last_, found_.jobs.rbegin()->first);
    if (identity_.empty()) {
        auto drawn = draw_identity();
        if (!drawn) return std::unexpected(drawn.error());
        identity_ = std::move(*drawn);
        const JobId used = std::max(reserved_, options_.number_seen);
        if (used > 0) {
            log_warn("the queue of this directory is lost: a new, empty one begins; jobs that still run are not in it",
                     {{"numbers_used", used}});
        }
        last_ = std::max(last_, used);
        first_ = last_ + 1;
        const std::array rows{Row{std::string(kQueue), json_text(json::object{{"id", identity_}, {"first", first_}})},
                              row_of_last(last_)};
        if (auto written = rows_->write(rows); !written) return written;
    }
    found_.last_number = last_;
    found_.gpu_types = options_.gpu_types;
    return {};
}

Result<void> HistoryStore::load_row(std::string_view key, std::string_view text) {
    const auto damaged = [&](const std::string& why) {
        return fail(ErrorCode::corrupt, "row \"" + std::string(key) + "\": " + why);
    };
    try {
        const auto object = parse_json_object(text, "it");
        if (!object) return damaged(object.error().message);
        if (key == kQueue) {
            identity_ = object->at("id").as_string();
            first_ = object->at("first").to_number<JobId>();
            if (identity_.empty()) return damaged("the queue's identity is empty");
        } else if (key == kNumbers) {
            last_ = object->at("last").to_number<JobId>();
        } else if (key.starts_with(kJob)) {
            JobRecord job = job_of_row(*object, options_.gpu_types);
            const JobId id = job.id;
            found_.jobs[id] = std::move(job);
        } else if (key.starts_with(kNode)) {
            KnownNode node{node_of_row(*object)};
            if (const json::value* usable = object->if_contains("is_usable")) node.usable = usable->as_bool();
            std::vector<std::string>& types = options_.gpu_types;
            if (!node.gpu_type.empty() && std::ranges::find(types, node.gpu_type) == types.end())
                types.push_back(node.gpu_type);
            found_.nodes[std::string(key.substr(kNode.size()))] = std::move(node);
        } else if (key.starts_with(kDrain)) {
            found_.drains[std::string(key.substr(kDrain.size()))] =
                NodeDrain{.by = std::string(object->at("by").as_string()),
                          .since_s = object->at("since_unix_s").to_number<double>()};
        } else if (key.starts_with(kTenant)) {
            found_.tenants[std::string(key.substr(kTenant.size()))] = gpu_time_of_row(*object);
        } else {
            return damaged("its kind is unknown");
        }
    } catch (const std::exception& error) {
        return damaged(error.what());
    }
    return {};
}

void HistoryStore::save(LiveRecord change, Done done) {
    if (!change.gpu_types.empty()) options_.gpu_types = change.gpu_types;
    // Recorded apart from the jobs, because the job with this number may be dropped before the next restart.
    std::optional<JobId> last;
    if (!change.jobs.empty() && change.jobs.rbegin()->first > last_) last = last_ = change.jobs.rbegin()->first;
    // The JSON of 10,000 jobs takes longer than a decision about them.
    writer_->post_made(
        [change = std::move(change), gpu_types = options_.gpu_types, last] { return rows_of(change, gpu_types, last); },
        std::move(done));
}

Result<void> HistoryStore::commit(std::span<const Row> rows) {
    JobId highest = 0;
    for (const Row& row : rows) highest = std::max(highest, number_of_key(row.key));
    if (highest > reserved_ && !options_.shared_rows) {
        const JobId reserved = highest + kNumbersReserved;
        if (auto written = replace_file(numbers_path(options_.directory), std::to_string(reserved) + "\n"); !written)
            return written;
        reserved_ = reserved;
    }
    return rows_->write(rows);
}

}  // namespace larder::scheduler
