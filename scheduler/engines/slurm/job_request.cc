#include "scheduler/engines/slurm/job_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "base/units.h"

namespace larder::scheduler::slurm {
namespace {

constexpr std::string_view kDirective = "#BB_LUA";
constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kForm = "expected #BB_LUA larder dataset=NAME [cache=SIZE] [bandwidth=RATE] [gpus=COUNT]";

std::string_view take_word(std::string_view& line) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
    line.remove_prefix(word.size());
    return word;
}

std::unexpected<Error> wrong_word(std::string_view word, std::string_view why) {
    return fail(ErrorCode::invalid_argument, "\"" + std::string(word) + "\": " + std::string(why));
}

Result<std::uint64_t> parse_count(std::string_view text) {
    std::uint64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc{} || end != text.data() + text.size() || count == 0) {
        return fail(ErrorCode::invalid_argument, "expected a whole number above 0");
    }
    return count;
}

Result<void> take_value(JobRequest& request, std::string_view key, std::string_view value) {
    const auto store = [](auto& into, const auto& parsed) -> Result<void> {
        if (!parsed) return std::unexpected(parsed.error());
        if (!(*parsed > 0)) return fail(ErrorCode::invalid_argument, "must be above 0");
        into = *parsed;
        return {};
    };
    if (key == "cache") return store(request.cache_bytes, parse_bytes(value));
    if (key == "bandwidth") return store(request.bandwidth_bytes_per_second, parse_bytes_per_second(value));
    if (key == "gpus") return store(request.gpus, parse_count(value));
    if (key == "dataset") {
        request.dataset = value;
        if (value.empty()) return fail(ErrorCode::invalid_argument, "the name is empty");
        return {};
    }
    // Slurm reads these itself, to count a job against a pool.
    if (key == "pool" || key == "capacity") return {};
    return fail(ErrorCode::invalid_argument, "unknown; " + std::string(kForm));
}

Result<void> parse_words(std::string_view words, JobRequest& request) {
    std::set<std::string_view> seen;
    for (std::string_view word = take_word(words); !word.empty(); word = take_word(words)) {
        const std::size_t equals = word.find('=');
        if (equals == std::string_view::npos) return wrong_word(word, kForm);
        const std::string_view key = word.substr(0, equals);
        if (!seen.insert(key).second) return wrong_word(word, "was given before");
        const auto taken = take_value(request, key, word.substr(equals + 1));
        if (!taken) return wrong_word(word, taken.error().message);
    }
    if (request.dataset.empty()) {
        return fail(ErrorCode::invalid_argument, "dataset=NAME is missing; " + std::string(kForm));
    }
    return {};
}

}  // namespace

std::uint64_t licence_count(const JobRequest& request) {
    constexpr double kLicence_bytes_per_second = 1e6;
    constexpr double kMax = std::numeric_limits<std::uint32_t>::max();  // Slurm's
    return static_cast<std::uint64_t>(
        std::ceil(std::min(request.bandwidth_bytes_per_second / kLicence_bytes_per_second, kMax)));
}

Result<std::optional<JobRequest>> parse_job_request(std::string_view script) {
    std::optional<JobRequest> request;
    while (!script.empty()) {
        std::string_view line = script.substr(0, script.find('\n'));
        script.remove_prefix(std::min(script.size(), line.size() + 1));
        if (line.find_first_not_of(kBlanks) == std::string_view::npos) continue;
        if (!line.starts_with('#')) break;
        if (take_word(line) != kDirective) continue;
        if (const std::string_view word = take_word(line); word != "larder") return wrong_word(word, kForm);
        if (request) return fail(ErrorCode::invalid_argument, "more than one line begins with #BB_LUA larder");
        request.emplace();
        if (auto parsed = parse_words(line, *request); !parsed) return std::unexpected(parsed.error());
    }
    return request;
}

}  // namespace larder::scheduler::slurm
