#include "cache/control/new_dataset.h"

#include "cache/remote/remote_url.h"

namespace larder::cache {

Result<NewDataset> check_dataset_request(const DatasetRequest& request, const DatasetAccess& defaults) {
    NewDataset dataset;
    DatasetRecord& record = dataset.record;
    if (auto checked = check_dataset_name(request.name); !checked)
        return std::unexpected(checked.error().within("name"));
    record.name = request.name;
    auto url = normalise_url(request.url);
    if (!url) return std::unexpected(url.error().within("url"));
    record.url = *url;
    if (auto checked = check_remote_options(request.remote, record.url); !checked)
        return std::unexpected(checked.error());
    record.remote = request.remote;
    dataset.detect_format = !request.format;
    if (request.format) {
        const auto format = parse_format(*request.format);
        if (!format) return std::unexpected(format.error().within("format"));
        record.format = *format;
    }
    if (request.block) {
        const auto block = parse_block_goal(*request.block);
        if (!block) return std::unexpected(block.error().within("block"));
        record.block = *block;
    }
    if (request.compression) {
        const auto compression = parse_compression(*request.compression);
        if (!compression) return std::unexpected(compression.error().within("compression"));
        record.compression = *compression;
    }
    record.checksum = request.checksum;
    if (request.tokens_per_sample) {
        if (*request.tokens_per_sample == 0 || *request.tokens_per_sample > kTokensPerSampleMax) {
            return fail(ErrorCode::invalid_argument,
                        "tokens_per_sample: " + std::to_string(*request.tokens_per_sample) + " is not from 1 to " +
                            std::to_string(kTokensPerSampleMax));
        }
        record.tokens_per_sample = static_cast<std::uint32_t>(*request.tokens_per_sample);
    }
    record.access = defaults;
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
    return dataset;
}

}  // namespace larder::cache
