#include "cache/dataset/pack_source.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/hash.h"
#include "cache/dataset/blocks_ahead.h"
#include "cache/protocol/sample_table.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kReadBytes = std::uint64_t{8} << 20;

}  // namespace

Result<PackSource> PackSource::open(const PackRequest& request, const std::string& manifest_path,
                                    std::stop_token stop) {
    const IndexRequest index_request{
        .definition = request.source,
        .transfers = request.transfers,
        .block_of_shards = BlockGoal{.target = protocol::BlockTarget::bytes, .bytes = kReadBytes},
        .manifest = {.path = manifest_path, .dataset_id = 1}};
    auto report = index_dataset(index_request, {}, stop);
    if (!report) return std::unexpected(report.error());
    auto manifest = protocol::Manifest::open(manifest_path);
    if (!manifest) return std::unexpected(manifest.error());
    if (manifest->has_rows()) {
        return fail(ErrorCode::unsupported, request.source.url +
                                                ": its samples are rows of tables, which are not packed, because they "
                                                "have no bytes of their own; add it as it is: larder dataset add");
    }
    return PackSource(std::move(*report), std::move(*manifest));
}

Result<void> PackSource::visit_block(std::uint32_t index, std::span<const std::byte> bytes,
                                     const std::function<Result<void>(const SourceSample&)>& visit) {
    const protocol::Block block = manifest_.block(index);
    const protocol::Object object = manifest_.object(block.object);
    for (std::uint32_t i = 0; i < block.sample_count; ++i) {
        SourceSample sample{.index = std::uint64_t{block.first_sample} + i,
                            .path = object.path,
                            .label = object.label,
                            .bytes = {},
                            .block_bytes_read = i == 0 ? block.length : 0};
        if (manifest_.samples_by_ordinal()) {
            const auto found = protocol::sample_in(bytes, i, block.sample_count);
            if (!found) return std::unexpected(found.error().within(std::string(object.path)));
            sample.bytes = *found;
        } else {
            const protocol::SampleExtent extent = manifest_.sample(sample.index);
            sample.bytes = bytes.subspan(extent.offset, extent.length);
        }
        if (auto visited = visit(sample); !visited) return visited;
    }
    return {};
}

Result<void> PackSource::for_each_sample(const std::function<Result<void>(const SourceSample&)>& visit) {
    std::vector<std::uint32_t> order(manifest_.block_count());
    std::iota(order.begin(), order.end(), 0);
    if (report_.definition.format == protocol::Format::raw) std::ranges::sort(order, {}, mix64);
    BlocksAhead ahead(*report_.source, manifest_, order);
    for (const std::uint32_t block : order) {
        const auto read = ahead.next();
        if (!read) return std::unexpected(read.error());
        if (auto visited = visit_block(block, read->bytes, visit); !visited) return visited;
    }
    return {};
}

}  // namespace larder::cache
