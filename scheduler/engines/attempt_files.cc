#include "scheduler/engines/attempt_files.h"

#include <boost/json.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <exception>
#include <filesystem>

#include "base/server/json_text.h"

namespace larder::scheduler {
namespace json = boost::json;
namespace {

struct flock whole_file(short type) {
    struct flock range{};
    range.l_type = type;
    range.l_whence = SEEK_SET;
    return range;
}

std::optional<json::object> read_object(const std::string& path) {
    const auto text = read_file(path);
    if (!text) return std::nullopt;
    json::error_code error;
    json::value value = json::parse(*text, error);
    if (error || !value.is_object()) return std::nullopt;
    return std::move(value.get_object());
}

std::string text_in(const json::object& object, std::string_view key) {
    const json::value* text = object.if_contains(key);
    return text != nullptr && text->is_string() ? std::string(text->get_string()) : std::string();
}

std::string queue_in(const json::object& object) {
    return text_in(object, "queue");
}

// Returns 0 if the directory's name is not a number.
template <typename Number>
Number number_of(const std::filesystem::path& directory) {
    const std::string name = directory.filename().string();
    Number number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    return error == std::errc{} && end == name.data() + name.size() ? number : 0;
}

// Calls `visit(queue, job, directory)` for each directory of a job. They are jobs/QUEUE/NUMBER; older versions used
// jobs/NUMBER, and have an empty queue. A directory that cannot be read has no jobs.
template <typename Visit>
void for_each_job(const std::string& jobs_directory, const Visit& visit) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(jobs_directory, error)) {
        if (const auto number = number_of<JobId>(entry.path()); number > 0) {
            visit(std::string(), number, entry.path());
            continue;
        }
        std::error_code ignored;
        for (const auto& job : std::filesystem::directory_iterator(entry.path(), ignored)) {
            const auto number = number_of<JobId>(job.path());
            if (number > 0) visit(entry.path().filename().string(), number, job.path());
        }
    }
}

EngineJob job_of(const json::object& object) {
    EngineJob job{.job = object.at("job").to_number<JobId>(),
                  .attempt = object.at("attempt").to_number<std::uint32_t>(),
                  .directory = std::string(object.at("directory").as_string()),
                  .grace_s = object.at("grace_s").to_number<double>()};
    for (const json::value& word : object.at("command").as_array()) job.command.emplace_back(word.as_string());
    for (const auto& [key, value] : object.at("environment").as_object()) {
        job.environment[std::string(key)] = value.as_string();
    }
    if (const json::value* user = object.if_contains("user")) {
        job.user = RunAs{user->at(0).to_number<std::uint32_t>(), user->at(1).to_number<std::uint32_t>()};
    }
    return job;
}

}  // namespace

std::string boot_id() {
    auto id = read_file("/proc/sys/kernel/random/boot_id").value_or("");
    id.erase(std::min(id.find('\n'), id.size()));
    return id;
}

Result<void> AttemptFiles::write_run(const EngineJob& job, const std::string& group_parent) const {
    std::error_code error;
    std::filesystem::create_directories(directory_, error);
    if (error) return fail_errno(error.value(), "make " + directory_);
    struct stat status{};
    if (::stat(directory_.c_str(), &status) != 0) return fail_errno(errno, "look at " + directory_);
    json::array command;
    for (const std::string& word : job.command) command.push_back(json::value(word));
    json::object environment;
    for (const auto& [key, value] : job.environment) environment[key] = value;
    json::object object{{"queue", queue_},
                        {"job", job.job},
                        {"attempt", job.attempt},
                        {"command", std::move(command)},
                        {"directory", job.directory},
                        {"environment", std::move(environment)},
                        {"grace_s", job.grace_s}};
    // The numbers of the directory make the name unique on this machine: two allocators may share a parent.
    if (!group_parent.empty()) {
        object["group"] = group_parent + "/larder-" + queue_ + "-" + std::to_string(job.job) + "-" +
                          std::to_string(job.attempt) + "-" + std::to_string(status.st_dev) + "-" +
                          std::to_string(status.st_ino);
    }
    if (job.user) object["user"] = json::array{job.user->uid, job.user->gid};
    // Not synced: after a power cut no attempt runs, and starting one writes this file again.
    return replace_file_unsynced(directory_ + "/run.json", json_text(object), 0600);
}

Result<EngineJob> AttemptFiles::read_run() const {
    const auto object = read_object(directory_ + "/run.json");
    try {
        if (object) return job_of(*object);
    } catch (const std::exception& error) {
        return fail(ErrorCode::corrupt, directory_ + "/run.json: " + error.what());
    }
    return fail(ErrorCode::corrupt, directory_ + "/run.json cannot be read");
}

std::string AttemptFiles::queue_of_run() const {
    const auto object = read_object(directory_ + "/run.json");
    return object ? queue_in(*object) : std::string();
}

std::string AttemptFiles::group_of_run() const {
    const auto object = read_object(directory_ + "/run.json");
    return object ? text_in(*object, "group") : std::string();
}

// Returns nullopt if the file belongs to another queue.
std::optional<json::object> AttemptFiles::read_own(const char* file) const {
    auto object = read_object(directory_ + "/" + file);
    if (object && queue_in(*object) != queue_) return std::nullopt;
    return object;
}

Result<FileDescriptor> AttemptFiles::lock() const {
    auto file = open_file(directory_ + "/lock", O_RDWR | O_CREAT, 0600);
    if (!file) return file;
    struct flock range = whole_file(F_WRLCK);
    if (::fcntl(file->get(), F_OFD_SETLK, &range) == 0) return file;
    if (errno != EAGAIN && errno != EACCES) return fail_errno(errno, "lock " + directory_);
    return fail(ErrorCode::already_exists, "another runner uses " + directory_);
}

bool AttemptFiles::is_locked() const {
    const auto file = open_file(directory_ + "/lock", O_RDWR, 0600);
    if (!file) return false;
    // Only tests the lock: taking it, even briefly, could turn a runner away.
    struct flock range = whole_file(F_WRLCK);
    return ::fcntl(file->get(), F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

Result<bool> AttemptFiles::claim(const StartedBy& starter) const {
    std::error_code error;
    std::filesystem::create_directories(directory_, error);
    if (error) return fail_errno(error.value(), "make " + directory_);
    // The file must be complete once it is visible. So write it under another name, then link it, which fails if
    // `started` exists.
    const std::string own = directory_ + "/started." + std::to_string(::getpid());
    const json::object object{
        {"queue", queue_}, {"pid", starter.pid}, {"boot", starter.boot}, {"group", starter.group}};
    if (auto written = replace_file(own, json_text(object), 0644); !written) {
        return std::unexpected(written.error());
    }
    const int linked = ::link(own.c_str(), (directory_ + "/started").c_str());
    const int why = errno;
    ::unlink(own.c_str());
    if (linked == 0) {
        // Sync before anything runs, so that after a power cut an attempt with an exit.json also has `started`.
        if (auto synced = sync_directory(directory_); !synced) return std::unexpected(synced.error());
        return true;
    }
    if (why == EEXIST) return false;
    return fail_errno(why, "claim " + directory_);
}

std::optional<StartedBy> AttemptFiles::started() const {
    const auto object = read_own("started");
    if (!object) return std::nullopt;
    const json::value* pid = object->if_contains("pid");
    const json::value* boot = object->if_contains("boot");
    if (pid == nullptr || !pid->is_int64() || boot == nullptr || !boot->is_string()) return StartedBy{};
    return StartedBy{static_cast<pid_t>(pid->get_int64()), std::string(boot->get_string()), text_in(*object, "group")};
}

Result<void> AttemptFiles::write_stop(const std::string& by) const {
    return replace_file(directory_ + "/stop.json", json_text(json::object{{"queue", queue_}, {"by", by}}), 0644);
}

std::optional<std::string> AttemptFiles::stopped_by() const {
    const auto object = read_own("stop.json");
    return object ? std::optional(text_in(*object, "by")) : std::nullopt;
}

Result<void> AttemptFiles::write_exit(const AttemptExit& outcome) const {
    json::object object{{"queue", queue_},
                        {"was_stopping", outcome.was_stopping},
                        {"stop_came_late", outcome.stop_came_late},
                        {"stopped_by", outcome.stopped_by},
                        {"message", outcome.message}};
    if (outcome.code) object["code"] = *outcome.code;
    if (outcome.signal) object["signal"] = *outcome.signal;
    return replace_file(directory_ + "/exit.json", json_text(object), 0644);
}

std::optional<AttemptExit> AttemptFiles::exit() const {
    const auto object = read_own("exit.json");
    if (!object) return std::nullopt;
    AttemptExit outcome;
    try {
        if (object->contains("code")) outcome.code = object->at("code").to_number<int>();
        if (object->contains("signal")) outcome.signal = object->at("signal").to_number<int>();
        outcome.was_stopping = object->at("was_stopping").as_bool();
        // Runners of older versions do not write the next two.
        const json::value* late = object->if_contains("stop_came_late");
        outcome.stop_came_late = late != nullptr && late->as_bool();
        outcome.stopped_by = text_in(*object, "stopped_by");
        outcome.message = object->at("message").as_string();
    } catch (const std::exception& error) {
        outcome.message = directory_ + "/exit.json: " + error.what();
    }
    return outcome;
}

bool AttemptFiles::may_run() const {
    if (exit()) return false;
    const auto starter = started();
    return starter ? starter->pid > 0 && is_locked() : read_own("run.json").has_value();
}

std::vector<AttemptName> attempts_with_files(const std::string& jobs_directory) {
    std::vector<AttemptName> found;
    for_each_job(jobs_directory, [&](const std::string& queue, JobId job, const std::filesystem::path& directory) {
        std::error_code error;
        for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
            const auto attempt = number_of<std::uint32_t>(entry.path());
            if (attempt > 0) found.push_back({.queue = queue, .job = job, .attempt = attempt});
        }
    });
    return found;
}

JobId highest_job_number(const std::string& jobs_directory) {
    JobId highest = 0;
    for_each_job(jobs_directory, [&](const std::string&, JobId job, const std::filesystem::path&) {
        highest = std::max(highest, job);
    });
    return highest;
}

}  // namespace larder::scheduler
