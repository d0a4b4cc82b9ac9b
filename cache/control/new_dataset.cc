#include "cache/control/new_dataset.h"

#include "cache/remote/remote_url.h"

namespace larder::cache {

Result<NewDataset> check_dataset_request(const DatasetRequest& wish, const DatasetAccess& defaults) {
    NewDataset dataset;
    DatasetRecord& record = dataset.record;
    if (auto checked = check_dataset_name(wish.name); !checked) return std::unexpected(checked.error().within("name"));
    record.name = wish.name;
    auto url = normalise_url(wish.url);
    if (!url) return std::unexpected(url.error().within("url"));
    record.url = *url;
    if (auto checked = check_remote_options(wish.remote, record.url); !checked) return std::unexpected(checked.error());
    record.remote = wish.remote;
    dataset.detect_format = !wish.format;
    if (wish.format) {
        const auto format = parse_format(*wish.format);
        if (!format) return std::unexpected(format.error().within("format"));
        record.format = *format;
    }
    if (wish.block) {
        const auto block = parse_block_goal(*wish.block);
        if (!block) return std::unexpected(block.error().within("block"));
        record.block = *block;
    }
    if (wish.compression) {
        const auto compression = parse_compression(*wish.compression);
        if (!compression) return std::unexpected(compression.error().within("compression"));
        record.compression = *compression;
    }
    record.checksum = wish.checksum;
    if (wish.tokens_per_sample) {
        if (*wish.tokens_per_sample == 0 || *wish.tokens_per_sample > kTokensPerSampleMax) {
            return fail(ErrorCode::invalid_argument, "tokens_per_sample: " + std::to_string(*wish.tokens_per_sample) +
                                                         " is not from 1 to " + std::to_string(kTokensPerSampleMax));
        }
        record.tokens_per_sample = static_cast<std::uint32_t>(*wish.tokens_per_sample);
    }
    record.access = defaults;
    if (wish.owner) {
        const auto owner = user_id(*wish.owner);
        if (!owner) return fail(ErrorCode::invalid_argument, "owner: " + owner.error().message);
        record.access.owner = *owner;
    }
    if (wish.group) {
        const auto group = group_id(*wish.group);
        if (!group) return fail(ErrorCode::invalid_argument, "group: " + group.error().message);
        record.access.group = *group;
    }
    record.access.mode = wish.mode.value_or(defaults.mode);
    record.quota = wish.quota.value_or(Quota{});
    record.quota_held = wish.quota.has_value();
    return dataset;
}

}  // namespace larder::cache
