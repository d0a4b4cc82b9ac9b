#include "tools/cli/added_job.h"

#include <boost/json/array.hpp>

#include <charconv>
#include <limits>
#include <string>

#include "base/units.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

std::unexpected<Error> invalid_part(std::string_view part, const std::string& reason) {
    return fail(ErrorCode::invalid_argument, "\"" + std::string(part) + "\": " + reason);
}

std::string_view take_until(std::string_view& text, char end) {
    const std::size_t length = text.find(end);
    const std::string_view first = text.substr(0, length);
    text = length == std::string_view::npos ? std::string_view() : text.substr(length + 1);
    return first;
}

template <typename Number>
Result<Number> number_of(std::string_view text) {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) {
        return fail(ErrorCode::invalid_argument, "\"" + std::string(text) + "\" is not a number");
    }
    return number;
}

// Stores a parsed value, or returns its error.
template <typename Value>
Result<void> set_field(json::object& job, const char* key, const Result<Value>& value) {
    if (!value) return std::unexpected(value.error());
    job[key] = *value;
    return {};
}

Result<void> take_part(json::object& job, std::string_view key, std::string_view value) {
    if (key == "dataset") {
        job["dataset"] = value;
        return {};
    }
    if (key == "size") return set_field(job, "dataset_size_bytes", parse_bytes(value));
    if (key == "ideal") return set_field(job, "ideal_bytes_per_second", parse_bytes_per_second(value));
    if (key == "floor") return set_field(job, "bandwidth_floor_bytes_per_second", parse_bytes_per_second(value));
    if (key == "cap") return set_field(job, "bandwidth_cap_bytes_per_second", parse_bytes_per_second(value));
    if (key == "weight") return set_field(job, "weight", number_of<double>(value));
    if (key == "epochs") return set_field(job, "epochs", number_of<double>(value));
    if (key == "gpus") return set_field(job, "gpus", number_of<std::uint32_t>(value));
    if (key == "nodes") {
        json::array nodes;
        while (!value.empty()) nodes.push_back(json::value(take_until(value, '+')));
        job["nodes"] = std::move(nodes);
        return {};
    }
    return fail(ErrorCode::invalid_argument,
                "unknown; known: dataset, size, ideal, gpus, nodes, weight, epochs, floor, cap");
}

}  // namespace

Result<json::object> parse_added_job(std::string_view text) {
    json::object job;
    const std::string_view name = take_until(text, ',');
    if (name.empty() || name.find('=') != std::string_view::npos) {
        return invalid_part(name, std::string("a job begins with its name: ") + kAddedJobForm);
    }
    job["name"] = name;
    while (!text.empty()) {
        const std::string_view part = take_until(text, ',');
        std::string_view value = part;
        const std::string_view key = take_until(value, '=');
        if (auto taken = take_part(job, key, value); !taken) return invalid_part(part, taken.error().message);
    }
    if (!job.contains("dataset")) return invalid_part(name, "dataset=NAME is missing");
    return job;
}

Result<std::int64_t> parse_signed_bytes(std::string_view text) {
    const bool is_negative = text.starts_with('-');
    if (!is_negative && !text.starts_with('+')) {
        return fail(ErrorCode::invalid_argument,
                    "\"" + std::string(text) + "\" is not a change: begin with + for more, or - for less");
    }
    text.remove_prefix(1);
    const auto bytes = parse_bytes(text);
    if (!bytes) return std::unexpected(bytes.error());
    if (*bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return fail(ErrorCode::invalid_argument, "\"" + std::string(text) + "\" is too large");
    }
    return is_negative ? -static_cast<std::int64_t>(*bytes) : static_cast<std::int64_t>(*bytes);
}

}  // namespace larder::cli
