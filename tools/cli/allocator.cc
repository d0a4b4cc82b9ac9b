#include "tools/cli/allocator.h"

#include <CLI/CLI.hpp>
#include <boost/json/parse.hpp>

#include <chrono>
#include <thread>

#include "base/server/http_client.h"
#include "base/server/json_text.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

constexpr std::size_t kNamesShown = 3;

std::uint64_t tiers_at(const json::object& object, const char* key) {
    const json::object& tiers = object_at(object, key);
    return count_at(tiers, "memory_bytes") + count_at(tiers, "disk_bytes");
}

std::string age_text(const json::object& object, const char* key) {
    return object.contains(key) ? format_duration_ns(static_cast<std::int64_t>(number_at(object, key) * 1e6)) : "-";
}

struct Allocator {
    std::string endpoint;
    HttpClientOptions options;
};

// Returns the allocator that the user named or, if none is named, the one that this machine's daemon asks. Errors:
// unavailable if no daemon answers; invalid_argument if the daemon has no allocator.
Result<Allocator> find_allocator(const Context& context) {
    Allocator allocator{.endpoint = context.allocator.endpoint, .options = {}};
    if (allocator.endpoint.empty()) {
        const auto status = call(context, "GET", "/v1/status");
        if (!status) {
            Error error = status.error();
            if (error.code == ErrorCode::unavailable) error.message += "; --allocator names an allocator directly";
            return std::unexpected(std::move(error));
        }
        allocator.endpoint = text_at(object_at(as_object(*status), "allocator"), "endpoint");
        if (allocator.endpoint.empty()) {
            return fail(ErrorCode::invalid_argument,
                        "the daemon on this machine has no allocator: name one with --allocator or $LARDER_ALLOCATOR");
        }
    }
    auto options = http_client_options(context.allocator.credentials);
    if (!options) return std::unexpected(options.error());
    allocator.options = std::move(*options);
    return allocator;
}

Error with_hint(Error error, const std::string& other = kNameAnother) {
    if (error.code == ErrorCode::unavailable) {
        error.message = "no allocator answers (" + error.message + "): start larder-allocator, or " + other;
    }
    if (error.message.contains("certificate verify failed")) {
        error.message += "; --allocator-ca or $LARDER_ALLOCATOR_CA names the CA file that signed it";
    }
    return error;
}

// Returns the error in an answer. A server that is no allocator answers without one.
Error refusal_of(const HttpResponse& response, const std::string& endpoint) {
    json::error_code failure;
    if (json::parse(response.body, failure).is_object()) return error_of_response(response);
    return {ErrorCode::unavailable, endpoint + ": " + error_of_response(response).message +
                                        ", so no allocator listens there: check --allocator or $LARDER_ALLOCATOR"};
}

// How long a command waits for an allocator that leads: as long as a take-over lasts.
constexpr std::chrono::seconds kTakeOver(10);

// Returns a client that has asked which allocator leads, and goes on asking for `wait` while none does. The question
// has a short timeout, so that an allocator that hangs costs little. The request that follows may not be repeated: the
// allocator that hangs might carry it out, too. That request reports what is wrong.
HttpClient client_of(const Allocator& allocator, std::chrono::seconds wait) {
    constexpr std::int64_t kTimeout_ms = 2'000;
    constexpr std::chrono::milliseconds kPause(100);
    HttpClient client(allocator.endpoint);
    if (!allocator.endpoint.contains(',')) return client;
    HttpClientOptions options = allocator.options;
    options.timeout_ms = kTimeout_ms;
    const auto is_without_leader = [](const Result<HttpResponse>& answer) {
        return answer ? answer->status == kHttpMisdirected
                      : answer.error().code == ErrorCode::unavailable || answer.error().code == ErrorCode::timeout;
    };
    const auto give_up = std::chrono::steady_clock::now() + wait;
    while (is_without_leader(client.request("GET", "/v1", "", options)) && std::chrono::steady_clock::now() < give_up) {
        std::this_thread::sleep_for(kPause);
    }
    return client;
}

}  // namespace

void add_allocator_options(CLI::App& app, Context& context) {
    AllocatorAccess& access = context.allocator;
    const auto add = [&](const char* name, std::string& field, const char* variable, const char* type,
                         const char* help) { app.add_option(name, field, help)->envname(variable)->type_name(type); };
    add("--allocator", access.endpoint, "LARDER_ALLOCATOR", "ENDPOINT",
        "The cluster's allocator: a Unix socket, http://HOST:PORT or https://HOST:PORT, or several that stand in for "
        "each "
        "other, separated by commas. Default: $LARDER_ALLOCATOR, "
        "else the daemon's allocator");
    add("--allocator-token-file", access.credentials.token_file, "LARDER_ALLOCATOR_TOKEN_FILE", "FILE",
        "File with the token for the allocator. Default: $LARDER_ALLOCATOR_TOKEN_FILE");
    add("--allocator-ca", access.credentials.ca_file, "LARDER_ALLOCATOR_CA", "FILE",
        "CA file to verify the allocator's certificate. Default: $LARDER_ALLOCATOR_CA, else the system's CAs");
    add("--allocator-certificate", access.credentials.certificate_file, "LARDER_ALLOCATOR_CERTIFICATE", "FILE",
        "Client certificate to show the allocator. Default: $LARDER_ALLOCATOR_CERTIFICATE");
    add("--allocator-key", access.credentials.key_file, "LARDER_ALLOCATOR_KEY", "FILE",
        "Key of the client certificate. Default: $LARDER_ALLOCATOR_KEY");
}

Result<json::value> call_allocator(const Context& context, std::string_view method, const std::string& target,
                                   const json::value& body, const std::string& other) {
    const auto allocator = find_allocator(context);
    if (!allocator) return std::unexpected(allocator.error());
    const std::string text = body.is_null() ? "" : json_text(body);
    HttpClient client = client_of(*allocator, context.allocator.waits_for_leader ? kTakeOver : kTakeOver.zero());
    auto response = client.request(method, target, text, allocator->options);
    if (!response) return std::unexpected(with_hint(response.error(), other));
    if (response->status >= 400) return std::unexpected(refusal_of(*response, allocator->endpoint));
    json::error_code failure;
    json::value value = json::parse(response->body, failure);
    if (failure) return fail(ErrorCode::protocol, "the allocator's answer to " + target + " is not JSON");
    return value;
}

Result<std::string> get_from_allocator(const Context& context, const std::string& target) {
    const auto allocator = find_allocator(context);
    if (!allocator) return std::unexpected(allocator.error());
    HttpClient client = client_of(*allocator, kTakeOver.zero());
    auto response = client.request("GET", target, "", allocator->options);
    if (!response) return std::unexpected(with_hint(response.error()));
    if (response->status >= 400) return std::unexpected(refusal_of(*response, allocator->endpoint));
    return std::move(response->body);
}

Result<void> stream_from_allocator(const Context& context, const std::string& target, std::int64_t silence_ms,
                                   const std::function<bool(std::string_view part)>& on_part) {
    auto allocator = find_allocator(context);
    if (!allocator) return std::unexpected(allocator.error());
    allocator->options.timeout_ms = silence_ms;
    HttpClient client = client_of(*allocator, kTakeOver.zero());
    const auto ended = client.get_stream(target, on_part, allocator->options);
    if (!ended) return std::unexpected(with_hint(ended.error()));
    return {};
}

std::string rate_at(const json::object& object, std::string_view key) {
    return object.contains(key) ? format_bytes_per_second(number_at(object, key)) : "-";
}

std::string bytes_at(const json::object& object, std::string_view key) {
    return bytes_at(object, key, unit_family_of(count_at(object, key)));
}

std::string bytes_at(const json::object& object, std::string_view key, UnitFamily family) {
    return object.contains(key) ? format_bytes(count_at(object, key), family) : "-";
}

UnitFamily unit_family_of_row(const json::object& dataset) {
    for (const std::string_view key : {"pinned_bytes", "quota_bytes"}) {
        if (const std::uint64_t bytes = count_at(dataset, key); bytes > 0) return unit_family_of(bytes);
    }
    return unit_family_of(count_at(dataset, "size_bytes"));
}

std::string part_at(const json::object& object, std::string_view key) {
    return object.contains(key) ? format_part(number_at(object, key), 1) : "-";
}

std::string names_at(const json::object& object, std::string_view key) {
    const json::array& names = array_at(object, key);
    std::string text;
    for (std::size_t i = 0; i < names.size() && i < kNamesShown; ++i) {
        if (names[i].is_string()) text += (text.empty() ? "" : " ") + std::string(names[i].get_string());
    }
    if (names.size() > kNamesShown) text += " +" + std::to_string(names.size() - kNamesShown);
    return text.empty() ? "-" : text;
}

std::string nodes_text(const json::array& nodes, std::size_t columns, const RowChoice& choice) {
    Table table({"NODE", ">CACHE", ">QUOTA", ">USED", ">JOBS", ">GRANTED", ">HEARD", ">LEASE"});
    for (const json::value& value : nodes) {
        const json::object& node = as_object(value);
        const json::object& lease = object_at(node, "lease");
        const std::uint64_t capacity_bytes = tiers_at(node, "capacity");
        const UnitFamily family = unit_family_of(capacity_bytes);
        const bool has_expired = node.contains("lease") && count_at(lease, "left_ms") == 0;
        table.add({text_at(node, "name"), format_bytes(capacity_bytes, family),
                   format_bytes(tiers_at(node, "quota"), family), format_bytes(tiers_at(node, "used"), family),
                   std::to_string(array_at(node, "jobs").size()),
                   has_expired ? "floors" : rate_at(lease, "bytes_per_second"),
                   flag_at(node, "alive") ? age_text(node, "heard_ms_ago") : "gone " + age_text(node, "heard_ms_ago"),
                   age_text(lease, "age_ms")});
    }
    const bool is_empty = table.empty();
    table.choose(choice);
    return is_empty ? "no node has reported yet\n" : table.text_within(columns, {"LEASE", "JOBS", "USED"});
}

}  // namespace larder::cli
