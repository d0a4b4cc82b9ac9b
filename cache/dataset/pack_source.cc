#include "cache/dataset/pack_source.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/hash.h"
#include "cache/protocol/sample_table.h"
#include "cache/remote/remote_place.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kReadBytes = std::uint64_t{8} << 20;

}  // namespace

PackSource::PackSource(IndexReport report, protocol::Manifest manifest)
    : report_(std::move(report)), manifest_(std::move(manifest)), objects_(report_.place->objects()) {}

Result<PackSource> PackSource::open(const PackRequest& request, const std::string& manifest_path,
                                    std::stop_token stop) {
    const IndexRequest wish{.url = request.source,
                            .remote = request.remote,
                            .transfers = request.transfers,
                            .format = request.source_format,
                            .block_of_shards = BlockGoal{.target = protocol::BlockTarget::bytes, .bytes = kReadBytes},
                            .tokens_per_sample = request.tokens_per_sample,
                            .manifest_path = manifest_path,
                            .dataset_id = 1};
    auto report = index_dataset(wish, {}, stop);
    if (!report) return std::unexpected(report.error());
    auto manifest = protocol::Manifest::open(manifest_path);
    if (!manifest) return std::unexpected(manifest.error());
    return PackSource(std::move(*report), std::move(*manifest));
}

Result<std::span<const std::byte>> PackSource::read(const protocol::Object& object, const protocol::Block& block) {
    const std::string path(object.path);
    if (reader_object_ != block.object) {
        auto opened = objects_->open(path);
        if (!opened) return std::unexpected(opened.error());
        if ((*opened)->size_bytes() < object.size_bytes) {
            return fail(ErrorCode::changed, path + " became shorter while it was packed");
        }
        if ((*opened)->tag() != object.mtime_ns) return fail(ErrorCode::changed, path + " changed while it was packed");
        reader_ = std::move(*opened);
        reader_object_ = block.object;
    }
    auto bytes = reader_->read(block.offset, block.length);
    if (!bytes) return std::unexpected(bytes.error().within(path));
    if (block.raw_bytes == 0) return bytes;
    auto raw = decompressor_.run(*bytes, block.raw_bytes);
    if (!raw) return std::unexpected(raw.error().within(path));
    raw_ = std::move(*raw);
    return std::span<const std::byte>(raw_.get(), block.raw_bytes);
}

Result<void> PackSource::visit_block(std::uint32_t index,
                                     const std::function<Result<void>(const SourceSample&)>& visit) {
    const protocol::Block block = manifest_.block(index);
    const protocol::Object object = manifest_.object(block.object);
    const auto bytes = read(object, block);
    if (!bytes) return std::unexpected(bytes.error());
    for (std::uint32_t i = 0; i < block.sample_count; ++i) {
        SourceSample sample{.index = std::uint64_t{block.first_sample} + i,
                            .path = object.path,
                            .label = object.label,
                            .bytes = {},
                            .block_bytes_read = i == 0 ? block.length : 0};
        if (manifest_.samples_by_ordinal()) {
            const auto found = protocol::sample_in(*bytes, i, block.sample_count);
            if (!found) return std::unexpected(found.error().within(std::string(object.path)));
            sample.bytes = *found;
        } else {
            const protocol::SampleExtent extent = manifest_.sample(sample.index);
            sample.bytes = bytes->subspan(extent.offset, extent.length);
        }
        if (auto visited = visit(sample); !visited) return visited;
    }
    return {};
}

Result<void> PackSource::each(const std::function<Result<void>(const SourceSample&)>& visit) {
    std::vector<std::uint32_t> order(manifest_.block_count());
    std::iota(order.begin(), order.end(), 0);
    if (report_.format == protocol::Format::raw) std::ranges::sort(order, {}, mix64);
    for (const std::uint32_t block : order) {
        if (auto visited = visit_block(block, visit); !visited) return visited;
    }
    return {};
}

}  // namespace larder::cache
