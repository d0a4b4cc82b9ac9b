#include "tools/cli/otlp.h"

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <optional>

#include "base/assert.h"
#include "base/server/http_client.h"
#include "base/server/json_text.h"
#include "tools/cli/admin_calls.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

// OTLP's numbers.
constexpr int kSpanInternal = 1;
constexpr int kSpanClient = 3;
constexpr int kStatusError = 2;

// Ids are lower-case hex in OTLP's JSON, unlike other bytes in the JSON of protocol buffers.
std::string random_id(std::size_t bytes) {
    std::array<unsigned char, 16> random{};
    LARDER_ASSERT(bytes <= random.size());
    LARDER_ASSERT(::getrandom(random.data(), bytes, 0) == static_cast<ssize_t>(bytes));
    // An id of zeros is invalid.
    random[0] |= 1;
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text;
    for (std::size_t i = 0; i < bytes; ++i) {
        text += kDigits[random[i] / 16];
        text += kDigits[random[i] % 16];
    }
    return text;
}

json::object attribute(std::string_view key, json::object value) {
    return {{"key", key}, {"value", std::move(value)}};
}

json::object text_attribute(std::string_view key, const std::string& text) {
    return attribute(key, {{"stringValue", text}});
}

// 64-bit integers are texts in the JSON of protocol buffers.
json::object number_attribute(std::string_view key, std::uint64_t number) {
    return attribute(key, {{"intValue", std::to_string(number)}});
}

struct TraceTimes {
    std::int64_t began_unix_ns = 0;
    std::int64_t duration_ns = 0;

    std::string unix_text(std::int64_t since_ns) const { return std::to_string(began_unix_ns + since_ns); }
    // A step that goes on is cut off at the end of the trace.
    std::int64_t end_of(const json::value& ended_ns) const {
        return ended_ns.is_null() ? duration_ns : ended_ns.to_number<std::int64_t>();
    }
};

bool is_read(std::string_view step) {
    return step == "remote_read" || step == "peer_read";
}

bool is_part(const json::object& trace, std::string_view step) {
    return std::ranges::any_of(array_at(trace, "steps"), [&](const json::value& value) {
        const json::object& known = as_object(value);
        return text_at(known, "step") == step && flag_at(known, "part_of_read");
    });
}

json::object span(const std::string& trace_id, const std::string& parent_id, std::string_view span_name, int kind,
                  const TraceTimes& times, std::int64_t began_ns, const json::value& ended_ns) {
    json::object made{{"traceId", trace_id},
                      {"spanId", random_id(8)},
                      {"name", span_name},
                      {"kind", kind},
                      {"startTimeUnixNano", times.unix_text(began_ns)},
                      {"endTimeUnixNano", times.unix_text(times.end_of(ended_ns))},
                      {"attributes", json::array()}};
    if (!parent_id.empty()) made["parentSpanId"] = parent_id;
    if (ended_ns.is_null()) made["attributes"].as_array().push_back(attribute("larder.cut_off", {{"boolValue", true}}));
    return made;
}

void add_spans(const json::object& trace, const json::object& block, const TraceTimes& times, json::array& spans) {
    const std::string trace_id = random_id(16);
    json::object root = span(trace_id, "", "larder.block", kSpanInternal, times,
                             block.at("taken_ns").to_number<std::int64_t>(), block.at("delivered_ns"));
    json::array& attributes = root["attributes"].as_array();
    attributes.push_back(text_attribute("larder.job", text_at(trace, "job")));
    attributes.push_back(text_attribute("larder.dataset", text_at(block, "dataset")));
    attributes.push_back(number_attribute("larder.block.index", count_at(block, "block")));
    attributes.push_back(number_attribute("larder.block.size", count_at(block, "bytes")));
    attributes.push_back(number_attribute("larder.epoch", count_at(block, "epoch")));
    for (const std::string_view key : {"source", "admitted"}) {
        if (const std::string text = text_at(block, key); !text.empty()) {
            attributes.push_back(text_attribute("larder." + std::string(key), text));
        }
    }
    if (const std::string status = text_at(block, "status"); !status.empty() && status != "ok") {
        attributes.push_back(text_attribute("error.type", status));
        root["status"] = {{"code", kStatusError}, {"message", status}};
    }
    const std::string root_id = text_at(root, "spanId");
    spans.push_back(std::move(root));

    std::string read_id;
    for (const json::value& value : array_at(block, "steps")) {
        const json::object& step = as_object(value);
        const std::string step_name = text_at(step, "step");
        const bool is_in_read = !read_id.empty() && is_part(trace, step_name);
        json::object child =
            span(trace_id, is_in_read ? read_id : root_id, step_name, is_read(step_name) ? kSpanClient : kSpanInternal,
                 times, step.at("began_ns").to_number<std::int64_t>(), step.at("ended_ns"));
        if (is_read(step_name)) {
            read_id = text_at(child, "spanId");
            if (const std::uint64_t tries = count_at(block, "tries"); tries > 1) {
                child["attributes"].as_array().push_back(number_attribute("http.request.resend_count", tries - 1));
            }
        }
        spans.push_back(std::move(child));
    }
}

json::object request_of(json::array spans) {
    std::array<char, 256> host{};
    [[maybe_unused]] const int failed = ::gethostname(host.data(), host.size() - 1);
    json::object resource{{"attributes", json::array{text_attribute("service.name", "larderd"),
                                                     text_attribute("service.version", LARDER_VERSION),
                                                     text_attribute("host.name", host.data())}}};
    json::object scope{{"scope", json::object{{"name", "larder"}, {"version", LARDER_VERSION}}},
                       {"spans", std::move(spans)}};
    return {{"resourceSpans", json::array{json::object{{"resource", std::move(resource)},
                                                       {"scopeSpans", json::array{std::move(scope)}}}}}};
}

Result<void> write_lines(const std::vector<json::object>& requests, const std::string& path) {
    std::ofstream file(path, std::ios::trunc);
    for (const json::object& request : requests) file << json_text(request) << '\n';
    file.close();
    if (!file) return fail_errno(errno, "write " + path);
    return {};
}

// An answer of 200 may say that the collector dropped some spans.
Result<void> check_all_taken(const std::string& body) {
    json::error_code failure;
    const json::value answer = json::parse(body, failure);
    if (failure) return {};
    const json::object& partial = object_at(as_object(answer), "partialSuccess");
    const std::string rejected = text_at(partial, "rejectedSpans");
    if (rejected.empty() || rejected == "0") return {};
    return fail(ErrorCode::invalid_argument,
                "the collector dropped " + rejected + " spans: " + text_at(partial, "errorMessage"));
}

Result<void> send(const std::vector<json::object>& requests, const std::string& url) {
    const std::size_t path_at = url.find('/', url.find("://") + 3);
    const std::string endpoint = url.substr(0, path_at);
    const std::string path = path_at == std::string::npos ? "/" : url.substr(path_at);
    const std::string target = path == "/" ? "/v1/traces" : path;
    HttpClient client(endpoint);
    for (const json::object& request : requests) {
        const auto answer = client.request("POST", target, json_text(request));
        if (!answer) return std::unexpected(answer.error().within(url));
        if (answer->status / 100 != 2) return std::unexpected(error_of_response(*answer).within(url));
        if (auto taken = check_all_taken(answer->body); !taken) return std::unexpected(taken.error().within(url));
    }
    return {};
}

}  // namespace

std::vector<json::object> otlp_requests(const json::object& trace) {
    const TraceTimes times{.began_unix_ns = trace.at("began_unix_ns").to_number<std::int64_t>(),
                           .duration_ns = trace.at("duration_ns").to_number<std::int64_t>()};
    std::vector<json::object> requests;
    json::array spans;
    std::size_t blocks = 0;
    for (const json::value& block : array_at(trace, "blocks")) {
        add_spans(trace, as_object(block), times, spans);
        if (++blocks % kOtlpBlocksPerRequest == 0) requests.push_back(request_of(std::exchange(spans, {})));
    }
    if (!spans.empty()) requests.push_back(request_of(std::move(spans)));
    return requests;
}

Result<void> export_otlp(const std::vector<json::object>& requests, const std::string& to) {
    const bool is_url = to.starts_with("http://") || to.starts_with("https://");
    return is_url ? send(requests, to) : write_lines(requests, to);
}

}  // namespace larder::cli
