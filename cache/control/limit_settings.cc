#include "cache/control/limit_settings.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/server/logging.h"
#include "base/units.h"

namespace larder::cache {
namespace asio = boost::asio;

Result<void> LimitSettings::load() {
    std::error_code error;
    if (!std::filesystem::exists(path_, error)) return {};
    const auto text = read_file(path_);
    if (!text) return std::unexpected(text.error());
    return job_limits_.load(*text, path_);
}

void LimitSettings::set(const std::string& job, std::optional<JobLimit> limit, std::function<void(Result<void>)> done) {
    if (limit) {
        job_limits_.set(job, *limit, clock_.now_ns());
    } else {
        job_limits_.unset(job, clock_.now_ns());
    }
    log_info("job limit set",
             {{"job", job}, {"rate", limit ? format_bytes_per_second(limit->rate_bytes_per_second) : "as configured"}});
    files_.post([this, text = job_limits_.to_json(), done = std::move(done)] {
        auto written = replace_file(path_, text, 0640);
        asio::post(control_, [written, done] { done(written); });
    });
}

}  // namespace larder::cache
