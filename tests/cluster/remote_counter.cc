#include "tests/cluster/remote_counter.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include <algorithm>
#include <utility>

#include "base/server/http_client.h"

namespace larder::test {
namespace {

std::string text_at(const boost::json::value& value, const char* key) {
    return std::string(value.at(key).as_string());
}

}  // namespace

Result<void> RemoteCounter::update_counts(const std::string& socket) {
    const auto answer = http_request(socket, "GET", "/v1/jobs", {}, {.timeout_ms = answer_timeout_ms_});
    // A daemon that is too slow may go on reading, so its last count is out of date. A daemon that has ended reads no
    // more.
    if (!answer && answer.error().code == ErrorCode::timeout) return std::unexpected(answer.error());
    if (!answer || answer->status != 200) return {};
    boost::system::error_code error;
    const boost::json::value body = boost::json::parse(answer->body, error);
    if (error) return {};
    for (const boost::json::value& job : body.at("jobs").as_array()) {
        Job& known = jobs_[socket + " " + text_at(job, "job") + " " + text_at(job, "dataset")];
        const auto bytes = job.at("counters").at("bytes_remote_read").to_number<std::uint64_t>();
        if (bytes < known.last_bytes) {
            known.bytes_before += std::exchange(known.last_bytes, 0);
            known.burst_bytes_before += std::exchange(known.burst_bytes, 0);
        }
        known.last_bytes = bytes;
        known.burst_bytes = std::max(known.burst_bytes, job.at("remote_burst_bytes").to_number<std::uint64_t>());
    }
    return {};
}

Result<std::uint64_t> RemoteCounter::bytes() {
    const std::lock_guard lock(mutex_);
    for (const std::string& socket : sockets_) {
        if (auto updated = update_counts(socket); !updated) return std::unexpected(updated.error());
    }
    std::uint64_t sum = 0;
    for (const auto& [name, job] : jobs_) sum += job.bytes_before + job.last_bytes;
    return sum;
}

std::uint64_t RemoteCounter::burst_bytes() {
    const std::lock_guard lock(mutex_);
    std::uint64_t sum = 0;
    for (const auto& [name, job] : jobs_) sum += job.burst_bytes_before + job.burst_bytes;
    return sum;
}

void RemoteCounter::forget_bursts() {
    const std::lock_guard lock(mutex_);
    for (auto& [name, job] : jobs_) job.burst_bytes = job.burst_bytes_before = 0;
}

}  // namespace larder::test
