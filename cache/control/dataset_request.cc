#include "cache/control/dataset_request.h"

#include <boost/json.hpp>

#include "base/server/json_reader.h"
#include "cache/control/api_json.h"
#include "cache/control/remote_json.h"
#include "cache/dataset/dataset_index.h"
#include "cache/remote/remote_url.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

// Parses a text if there is one. `key` names it in errors.
template <typename Value, typename Parsed>
Result<void> parse_into(Value& into, const std::optional<std::string>& text, Result<Parsed> (*parse)(std::string_view),
                        std::string_view key) {
    if (!text) return {};
    auto parsed = parse(*text);
    if (!parsed) return std::unexpected(parsed.error().within(key));
    into = *parsed;
    return {};
}

Result<std::uint32_t> check_tokens(std::uint64_t tokens) {
    if (tokens > 0 && tokens <= kTokensPerSampleMax) return static_cast<std::uint32_t>(tokens);
    return fail(ErrorCode::invalid_argument, "tokens_per_sample: " + std::to_string(tokens) + " is not from 1 to " +
                                                 std::to_string(kTokensPerSampleMax));
}

}  // namespace

Result<DatasetRequest> read_dataset_request(const json::object& object) {
    JsonReader reader(object, "request body");
    DatasetRequest request;
    DatasetDefinition& definition = request.definition;
    definition.name = reader.string("name");
    definition.url = reader.string("url");
    const auto format = reader.optional_string("format");
    const auto block = reader.optional_string("block");
    const auto compression = reader.optional_string("compression");
    const auto columns = reader.optional_string("columns");
    request.dry_run = reader.optional_boolean("dry_run").value_or(false);
    definition.checksum = reader.optional_boolean("checksum").value_or(false);
    const auto tokens_per_sample = reader.optional_unsigned_integer("tokens_per_sample");
    request.owner = reader.optional_string("owner");
    request.group = reader.optional_string("group");
    if (const auto text = reader.optional_string("mode")) {
        const auto mode = parse_mode(*text);
        if (!mode) return std::unexpected(mode.error());
        request.mode = *mode;
    }
    const json::object* quota = reader.optional_object("quota");
    const json::object* remote = reader.optional_object("remote");
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    if (quota != nullptr) {
        const auto read = read_quota(*quota, "request body: quota");
        if (!read) return std::unexpected(read.error());
        request.quota_memory_bytes = read->memory_bytes;
        request.quota_disk_bytes = read->disk_bytes;
    }
    if (remote != nullptr) {
        auto read = read_remote(*remote, "request body: remote");
        if (!read) return std::unexpected(read.error());
        definition.remote = std::move(*read);
    }
    for (const auto& parsed : {parse_into(definition.format, format, parse_format, "format"),
                               parse_into(definition.block, block, parse_block_goal, "block"),
                               parse_into(definition.columns, columns, parse_columns, "columns"),
                               parse_into(definition.compression, compression, parse_compression, "compression")}) {
        if (!parsed) return std::unexpected(parsed.error());
    }
    if (tokens_per_sample) {
        const auto tokens = check_tokens(*tokens_per_sample);
        if (!tokens) return std::unexpected(tokens.error());
        definition.tokens_per_sample = *tokens;
    }
    return request;
}

Result<void> look_up_users(DatasetRequest& request) {
    if (request.owner) {
        const auto owner = user_id(*request.owner);
        if (!owner) return fail(ErrorCode::invalid_argument, "owner: " + owner.error().message);
        request.owner = std::to_string(*owner);
    }
    if (request.group) {
        const auto group = group_id(*request.group);
        if (!group) return fail(ErrorCode::invalid_argument, "group: " + group.error().message);
        request.group = std::to_string(*group);
    }
    return {};
}

Result<DatasetRecord> check_dataset_request(const DatasetRequest& request, const DatasetAccess& defaults) {
    DatasetRecord record{.definition = request.definition, .access = defaults};
    DatasetDefinition& definition = record.definition;
    if (auto checked = check_dataset_name(definition.name); !checked)
        return std::unexpected(checked.error().within("name"));
    auto url = normalise_url(definition.url);
    if (!url) return std::unexpected(url.error().within("url"));
    definition.url = *url;
    if (auto checked = check_remote_options(definition.remote, definition.url); !checked)
        return std::unexpected(checked.error());
    // The config accepts a block of any size.
    if (auto block = parse_block_goal(block_goal_text(definition.block)); !block)
        return std::unexpected(block.error().within("block"));
    if (request.owner) {
        const auto owner = user_id(*request.owner);
        if (!owner) return fail(ErrorCode::invalid_argument, "owner: " + owner.error().message);
        record.access.owner = *owner;
    }
    if (request.group) {
        const auto group = group_id(*request.group);
        if (!group) return fail(ErrorCode::invalid_argument, "group: " + group.error().message);
        record.access.group = *group;
    }
    record.access.mode = request.mode.value_or(defaults.mode);
    record.quota = {.memory_bytes = request.quota_memory_bytes.value_or(0),
                    .disk_bytes = request.quota_disk_bytes.value_or(0)};
    record.quota_held = request.quota_memory_bytes.has_value() || request.quota_disk_bytes.has_value();
    return record;
}

}  // namespace larder::cache
