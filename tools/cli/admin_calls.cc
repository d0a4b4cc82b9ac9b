#include "tools/cli/admin_calls.h"

#include <boost/json/parse.hpp>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/server/http.h"
#include "base/server/json_text.h"
#include "base/server/percent_encoding.h"
#include "base/units.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

constexpr std::int64_t kPollMs = 100;

const json::object kNoObject;
const json::array kNoArray;

// Returns a failed task's error, {code, message} as in any error answer.
Error error_of_task(const json::object& task) {
    const std::string state = text_at(task, "state");
    if (state == "cancelled") return {ErrorCode::cancelled, text_at(task, "kind") + " was cancelled", 0};
    const json::object body{{"error", task.contains("error") ? task.at("error") : json::value(nullptr)}};
    HttpResponse response{500, "application/json", json_text(body), {}};
    Error error = error_of_response(response);
    if (const std::string text = text_at(task, "error"); !text.empty()) error.message = text;
    return error;
}

std::string waits_for(const json::object& task) {
    const json::object& outage = object_at(task, "waits_for");
    return outage.empty() ? std::string() : outage_text(outage);
}

void show(ProgressLine& progress, const json::object& task) {
    progress.show({.done = count_at(task, "done"),
                   .total = count_at(task, "total"),
                   .unit = text_at(task, "unit"),
                   .bytes_done = count_at(task, "bytes_done"),
                   .seconds = number_at(task, "seconds"),
                   .speed = {},
                   .resumed = count_at(task, "resumed"),
                   .waits_for = waits_for(task)});
}

}  // namespace

Error with_option_names(Error error,
                        std::initializer_list<std::pair<std::string_view, std::string_view>> option_of_field) {
    for (const auto& [field, option] : option_of_field) {
        for (std::size_t at = 0; (at = error.message.find(field, at)) != std::string::npos; at += option.size()) {
            error.message.replace(at, field.size(), option);
        }
    }
    return error;
}

Result<json::value> call(const Context& context, std::string_view method, const std::string& target,
                         const json::value& body, const HttpClientOptions& options) {
    const std::string text = body.is_null() ? "" : json_text(body);
    auto response = http_request(context.admin_socket, method, target, text, options);
    if (!response) {
        if (response.error().system_errno == EPROTOTYPE) {
            return fail(ErrorCode::invalid_argument,
                        context.admin_socket +
                            " is the socket for training jobs; give --admin-socket the admin socket: admin.sock in the "
                            "same directory, unless the config sets another");
        }
        if (response.error().code == ErrorCode::permission_denied) {
            return fail(ErrorCode::permission_denied, response.error().message +
                                                          "; only the daemon's user and group may administer it, "
                                                          "unless admin_socket_mode in its config allows others");
        }
        if (response.error().code == ErrorCode::unavailable) {
            return fail(ErrorCode::unavailable, "no daemon answers (" + response.error().message +
                                                    "): start one with `larder up`, or name its socket with "
                                                    "--admin-socket or $LARDER_ADMIN_SOCKET");
        }
        return std::unexpected(response.error());
    }
    if (response->status >= 400) return std::unexpected(error_of_response(*response));
    json::error_code failure;
    json::value value = json::parse(response->body, failure);
    if (failure) return fail(ErrorCode::protocol, "the daemon's answer to " + target + " is not JSON");
    return value;
}

Result<EndedTask> follow_task(const Context& context, const json::value& accepted, const std::string& label,
                              const std::function<void(const json::object& task, ProgressLine&)>& on_poll) {
    const json::object& named = as_object(accepted);
    const std::string id = text_at(named, "task");
    if (id.empty()) return fail(ErrorCode::protocol, "the daemon's answer names no task");
    const std::string target = "/v1/tasks/" + percent_encode(id);
    std::optional<InterruptWatch> interrupt(std::in_place);
    bool cancelling = false;
    ProgressLine progress(label);
    for (;;) {
        auto task = call(context, "GET", target);
        if (!task) return std::unexpected(task.error());
        const json::object& fields = as_object(*task);
        if (on_poll) on_poll(fields, progress);
        show(progress, fields);
        const std::string state = text_at(fields, "state");
        if (state == "done") {
            progress.finish();
            return EndedTask{.task = std::move(*task), .error = {}};
        }
        const bool pressed = state == "running" && interrupt->pressed_within(kPollMs);
        // A second Ctrl-C does not wait for the task's end.
        if (cancelling && (pressed || state == "cancelled")) {
            return fail(ErrorCode::cancelled, label + " was cancelled");
        }
        if (state != "running") {
            Error error = error_of_task(fields);
            return EndedTask{.task = std::move(*task), .error = std::move(error)};
        }
        if (pressed) {
            if (auto cancelled = call(context, "DELETE", target); !cancelled) {
                return std::unexpected(cancelled.error());
            }
            cancelling = true;
            interrupt.emplace();
        }
    }
}

std::string outage_text(const json::object& outage) {
    return text_at(outage, "endpoint") + ", which has not answered for " +
           format_seconds(number_at(outage, "seconds")) + ": " + text_at(outage, "problem");
}

std::string dataset_target(const std::string& name, std::string_view rest) {
    return "/v1/datasets/" + percent_encode(name) + std::string(rest);
}

void print_json(const json::value& value) {
    std::printf("%s\n", json_text(value).c_str());
}

std::uint64_t count_at(const json::object& object, std::string_view key) {
    const double number = number_at(object, key);
    const json::value* value = object.if_contains(key);
    if (value != nullptr && value->is_uint64()) return value->get_uint64();
    return number > 0 ? static_cast<std::uint64_t>(number) : 0;
}

double number_at(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    if (value == nullptr || !value->is_number()) return 0;
    return value->to_number<double>();
}

bool flag_at(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    return value != nullptr && value->is_bool() && value->get_bool();
}

std::string text_at(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    if (value == nullptr) return {};
    if (value->is_string()) return std::string(value->get_string());
    return value->is_number() ? json_text(*value) : std::string();
}

const json::object& object_at(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    return value == nullptr ? kNoObject : as_object(*value);
}

const json::array& array_at(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    return value == nullptr || !value->is_array() ? kNoArray : value->get_array();
}

const json::object& as_object(const json::value& value) {
    return value.is_object() ? value.get_object() : kNoObject;
}

}  // namespace larder::cli
