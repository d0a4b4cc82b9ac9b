#include "base/server/etcd.h"

#include <boost/json.hpp>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <utility>

#include "base/server/json_reader.h"
#include "base/server/json_text.h"
#include "base/server/private_file.h"

namespace larder {
namespace {

namespace json = boost::json;

// A range of rows of a queue has some MB.
constexpr std::size_t kAnswerBytesMax = 64u << 20;

std::string to_base64(std::string_view text) {
    std::string encoded((text.size() + 2) / 3 * 4, '\0');
    // OpenSSL writes one more byte, a 0, which a string has anyway.
    EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()),
                    reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
    return encoded;
}

Result<std::string> of_base64(std::string_view encoded) {
    std::string text(encoded.size() / 4 * 3, '\0');
    const int bytes =
        EVP_DecodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                        reinterpret_cast<const unsigned char*>(encoded.data()), static_cast<int>(encoded.size()));
    if (bytes < 0 || encoded.size() % 4 != 0) return fail(ErrorCode::protocol, "a value of etcd is not base64");
    // OpenSSL counts the padding as bytes.
    const auto padding = static_cast<std::size_t>(
        std::ranges::count(encoded.substr(encoded.size() - std::min<std::size_t>(encoded.size(), 2)), '='));
    text.resize(static_cast<std::size_t>(bytes) - padding);
    return text;
}

// The gateway writes 64-bit numbers as text, and leaves out those that are 0.
std::int64_t number_at(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    if (value == nullptr) return 0;
    if (const json::string* text = value->if_string()) {
        std::int64_t number = 0;
        std::from_chars(text->data(), text->data() + text->size(), number);
        return number;
    }
    return value->to_number<std::int64_t>();
}

Result<EtcdKey> key_of(const json::object& object, std::size_t prefix_bytes) {
    const auto key = of_base64(object.at("key").as_string());
    if (!key) return std::unexpected(key.error());
    if (key->size() < prefix_bytes) return fail(ErrorCode::protocol, "etcd answered with a key outside the prefix");
    const json::value* value = object.if_contains("value");
    auto text = of_base64(value == nullptr ? std::string_view() : std::string_view(value->as_string()));
    if (!text) return std::unexpected(text.error());
    return EtcdKey{.key = key->substr(prefix_bytes),
                   .value = std::move(*text),
                   .create_revision = number_at(object, "create_revision"),
                   .lease = number_at(object, "lease")};
}

// Returns the keys in a range's answer. `at` and `as_...` throw on an answer of another shape: see read_answer.
Result<std::vector<EtcdKey>> keys_of(const json::object& range, std::size_t prefix_bytes) {
    std::vector<EtcdKey> keys;
    const json::value* found = range.if_contains("kvs");
    if (found == nullptr) return keys;
    for (const json::value& entry : found->as_array()) {
        auto key = key_of(entry.as_object(), prefix_bytes);
        if (!key) return std::unexpected(key.error());
        keys.push_back(std::move(*key));
    }
    return keys;
}

// Runs a reader of an answer, which throws if the answer has another shape.
template <typename Read>
auto read_answer(std::string_view what, Read read) -> decltype(read()) {
    try {
        return read();
    } catch (const std::exception& error) {
        return fail(ErrorCode::protocol, "etcd's answer to " + std::string(what) + " cannot be read: " + error.what());
    }
}

json::object create_revision_is(const std::string& key, std::int64_t revision) {
    return {{"target", "CREATE"},
            {"result", "EQUAL"},
            {"key", to_base64(key)},
            {"create_revision", std::to_string(revision)}};
}

// Returns the first key after all those that start with `start`.
std::string end_of(std::string start) {
    start.back() = static_cast<char>(static_cast<unsigned char>(start.back()) + 1);
    return start;
}

bool succeeded(const json::object& answer) {
    const json::value* value = answer.if_contains("succeeded");
    return value != nullptr && value->as_bool();
}

// Returns the start of a text of another program in one line, for a log, a terminal or JSON.
std::string printable_line(std::string_view text) {
    constexpr std::size_t kLineBytesMax = 300;
    std::string line(text.substr(0, kLineBytesMax));
    std::ranges::replace_if(line, [](char letter) { return letter < ' ' || letter > '~'; }, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    if (text.size() > kLineBytesMax) line += "...";
    return line;
}

// Returns what is wrong in etcd's words. Its gateway answers with JSON. The server in front of the gateway answers with
// a text, such as when it refuses a certificate.
std::string message_of(const HttpResponse& response) {
    std::string status = "status " + std::to_string(response.status);
    const auto body = parse_json_object(response.body, "the answer");
    if (!body) {
        const std::string text = printable_line(response.body);
        return text.empty() ? status : status + ": " + text;
    }
    for (const std::string_view key : {"message", "error"}) {
        const json::value* message = body->if_contains(key);
        if (message != nullptr && message->is_string() && !message->get_string().empty()) {
            return printable_line(message->get_string());
        }
    }
    return status;
}

// True if the database has reached its quota. Reads still work then, and leases can be renewed and revoked. New leases
// are refused, and so is each transaction that puts a key.
bool is_full(const HttpResponse& response) {
    return message_of(response).contains("database space exceeded");
}

// True if another member may be able to do what this one cannot now: it has no leader, or is overloaded or stopping.
bool may_go_elsewhere(unsigned status) {
    return status >= 500 || status == 429;
}

// True if etcd does not ask for users at present.
bool has_no_users(const HttpResponse& response) {
    return response.status == 412 || message_of(response).contains("authentication is not enabled");
}

// True if the token has ended, or was given before users or roles were changed, or is missing.
bool wants_token(const HttpResponse& response) {
    if (response.status == 401) return true;
    const std::string message = response.status == 400 ? message_of(response) : "";
    return message.contains("user name is empty") || message.contains("revision of auth store is old");
}

}  // namespace

EtcdClient::EtcdClient(EtcdOptions options) : options_(std::move(options)) {
    for (const std::string& endpoint : options_.endpoints) members_.emplace_back(endpoint);
}

Result<HttpResponse> EtcdClient::request(std::string_view path, const std::string& text) {
    HttpClientOptions options{.timeout_ms = options_.timeout_ms,
                              .bearer_token = "",
                              .ca_file = options_.ca_file,
                              .certificate_file = options_.certificate_file,
                              .key_file = options_.key_file,
                              .answer_bytes_max = kAnswerBytesMax,
                              .headers = {}};
    // etcd takes the token alone, without the word Bearer.
    if (!token_.empty()) options.headers.emplace_back("Authorization", token_);
    return members_[current_].request("POST", path, text, options);
}

// Gets a token from the current member, unless etcd has no users at present.
Result<void> EtcdClient::authenticate() {
    token_.clear();
    const auto password = read_private_line(options_.password_file, "etcd's password file");
    if (!password) return std::unexpected(password.error());
    const json::object body{{"name", options_.user}, {"password", *password}};
    const auto response = request("/v3/auth/authenticate", json_text(body));
    if (!response) return std::unexpected(response.error());
    if (response->status != 200 && has_no_users(*response)) return {};
    if (may_go_elsewhere(response->status)) return fail(ErrorCode::unavailable, message_of(*response));
    const auto answer = parse_json_object(response->body, "etcd's answer");
    const json::value* token = answer && response->status == 200 ? answer->if_contains("token") : nullptr;
    if (token == nullptr || !token->is_string()) {
        return fail(ErrorCode::permission_denied, "user \"" + options_.user + "\": " + message_of(*response));
    }
    token_ = token->as_string();
    return {};
}

// Asks the current member. If the member wants another token, gets one and asks again.
Result<HttpResponse> EtcdClient::ask_member(std::string_view path, const std::string& text) {
    auto response = request(path, text);
    if (options_.user.empty() || !response || !wants_token(*response)) return response;
    // The password may be about to change: this is no answer to what was asked.
    if (auto got = authenticate(); !got) return fail(ErrorCode::unavailable, got.error().message);
    response = request(path, text);
    if (response && wants_token(*response)) return fail(ErrorCode::unavailable, message_of(*response));
    return response;
}

Result<json::object> EtcdClient::call(std::string_view path, const json::object& body) {
    const std::string text = json_text(body);
    Error error{ErrorCode::unavailable, "no member of etcd is configured", 0};
    for (std::size_t tried = 0; tried < members_.size(); ++tried) {
        const std::string where = "etcd at " + options_.endpoints[current_];
        const auto response = ask_member(path, text);
        if (response && response->status == 200) return parse_json_object(response->body, "etcd's answer");
        if (response && (is_full(*response) || !may_go_elsewhere(response->status))) {
            return fail(is_full(*response) ? ErrorCode::no_space : ErrorCode::invalid_argument,
                        where + ": " + message_of(*response));
        }
        error = response ? Error{ErrorCode::unavailable, where + ": " + message_of(*response), 0}
                         : response.error().within("etcd");
        current_ = (current_ + 1) % members_.size();
    }
    return std::unexpected(std::move(error));
}

Result<std::optional<EtcdKey>> EtcdClient::get(std::string_view key) {
    const auto answer = call("/v3/kv/range", {{"key", to_base64(options_.prefix + std::string(key))}});
    if (!answer) return std::unexpected(answer.error());
    return read_answer("a read", [&]() -> Result<std::optional<EtcdKey>> {
        auto keys = keys_of(*answer, options_.prefix.size());
        if (!keys) return std::unexpected(keys.error());
        if (keys->empty()) return std::nullopt;
        return std::move(keys->front());
    });
}

Result<std::vector<EtcdKey>> EtcdClient::list(std::string_view start, std::string_view after, std::size_t limit) {
    const std::string first = options_.prefix + std::string(start);
    const std::string from = after.empty() ? first : options_.prefix + std::string(after) + '\0';
    const auto answer = call("/v3/kv/range", {{"key", to_base64(from)},
                                              {"range_end", to_base64(end_of(first))},
                                              {"limit", std::to_string(limit)},
                                              {"sort_target", "KEY"},
                                              {"sort_order", "ASCEND"}});
    if (!answer) return std::unexpected(answer.error());
    return read_answer("a read", [&] { return keys_of(*answer, options_.prefix.size()); });
}

Result<EtcdKey> EtcdClient::create(std::string_view key, std::string_view value, std::int64_t lease) {
    const std::string whole = options_.prefix + std::string(key);
    const json::object read{{"request_range", json::object{{"key", to_base64(whole)}}}};
    const json::object put{
        {"request_put",
         json::object{{"key", to_base64(whole)}, {"value", to_base64(value)}, {"lease", std::to_string(lease)}}}};
    const auto answer = call("/v3/kv/txn", {{"compare", json::array{create_revision_is(whole, 0)}},
                                            {"success", json::array{put, read}},
                                            {"failure", json::array{read}}});
    if (!answer) return std::unexpected(answer.error());
    return read_answer("a creation", [&]() -> Result<EtcdKey> {
        const json::array& responses = answer->at("responses").as_array();
        const json::object& range = responses.at(responses.size() - 1).at("response_range").as_object();
        auto keys = keys_of(range, options_.prefix.size());
        if (!keys) return std::unexpected(keys.error());
        if (keys->empty()) return fail(ErrorCode::protocol, "etcd has no key that it has just created");
        return std::move(keys->front());
    });
}

Result<std::optional<std::string>> EtcdClient::write(std::span<const Row> rows, const Turn& turn,
                                                     std::string_view cleared) {
    json::array operations;
    operations.reserve(rows.size() + 2);
    for (const Row& row : rows) {
        const std::string key = to_base64(options_.prefix + row.key);
        operations.push_back(
            row.text ? json::object{{"request_put", json::object{{"key", key}, {"value", to_base64(*row.text)}}}}
                     : json::object{{"request_delete_range", json::object{{"key", key}}}});
    }
    if (!cleared.empty()) {
        const std::string first = options_.prefix + std::string(cleared);
        const json::object range{{"key", to_base64(first)}, {"range_end", to_base64(end_of(first))}};
        operations.push_back(json::object{{"request_delete_range", range}});
    }
    const std::string fence = options_.prefix + turn.fence;
    const std::string sequence = options_.prefix + turn.sequence;
    const json::object put{
        {"request_put", json::object{{"key", to_base64(sequence)}, {"value", to_base64(turn.next)}}}};
    operations.push_back(put);
    const json::object is_next = turn.last.empty() ? create_revision_is(sequence, 0)
                                                   : json::object{{"target", "VALUE"},
                                                                  {"result", "EQUAL"},
                                                                  {"key", to_base64(sequence)},
                                                                  {"value", to_base64(turn.last)}};
    const auto read = [](const std::string& key) {
        return json::object{{"request_range", json::object{{"key", to_base64(key)}}}};
    };
    const auto answer =
        call("/v3/kv/txn", {{"compare", json::array{create_revision_is(fence, turn.create_revision), is_next}},
                            {"success", std::move(operations)},
                            {"failure", json::array{read(fence), read(sequence)}}});
    if (!answer) return std::unexpected(answer.error());
    return read_answer("a transaction", [&]() -> Result<std::optional<std::string>> {
        if (succeeded(*answer)) return turn.next;
        const json::array& responses = answer->at("responses").as_array();
        const auto found = [&](std::size_t index) {
            return keys_of(responses.at(index).at("response_range").as_object(), options_.prefix.size());
        };
        const auto holder = found(0);
        if (!holder) return std::unexpected(holder.error());
        if (holder->empty() || holder->front().create_revision != turn.create_revision) return std::nullopt;
        const auto last = found(1);
        if (!last) return std::unexpected(last.error());
        return last->empty() ? std::string() : last->front().value;
    });
}

Result<std::int64_t> EtcdClient::grant_lease(std::int64_t seconds) {
    const auto answer = call("/v3/lease/grant", {{"TTL", std::to_string(seconds)}});
    if (!answer) return std::unexpected(answer.error());
    return read_answer("a lease", [&]() -> Result<std::int64_t> {
        const std::int64_t lease = number_at(*answer, "ID");
        if (lease == 0) return fail(ErrorCode::protocol, "etcd granted a lease without a number");
        return lease;
    });
}

Result<std::int64_t> EtcdClient::keep_lease(std::int64_t lease) {
    const auto answer = call("/v3/lease/keepalive", {{"ID", std::to_string(lease)}});
    if (!answer) return std::unexpected(answer.error());
    return read_answer("a renewal",
                       [&]() -> Result<std::int64_t> { return number_at(answer->at("result").as_object(), "TTL"); });
}

Result<void> EtcdClient::revoke_lease(std::int64_t lease) {
    const auto answer = call("/v3/lease/revoke", {{"ID", std::to_string(lease)}});
    if (!answer) return std::unexpected(answer.error());
    return {};
}

}  // namespace larder
