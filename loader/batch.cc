#include "loader/batch.h"

#include <algorithm>
#include <utility>

#include "cache/protocol/sample_table.h"
#include "loader/block_client.h"
#include "loader/block_error.h"

namespace larder::detail {
namespace {

// The bytes of a sample within those of its block.
Result<std::span<const std::byte>> sample_bytes(const protocol::Manifest& manifest, std::uint64_t sample,
                                                const protocol::Block& block_info, std::span<const std::byte> block) {
    if (manifest.has_rows()) return block;
    if (manifest.samples_by_ordinal()) {
        return protocol::sample_in(block, static_cast<std::uint32_t>(sample - block_info.first_sample),
                                   block_info.sample_count);
    }
    const protocol::SampleExtent extent = manifest.sample(sample);
    return block.subspan(extent.offset, extent.length);
}

// Waits until each block is ready or has failed.
Result<void> await(BlockClient& client, std::span<const BatchSample> samples,
                   const std::function<Result<void>()>& on_starved) {
    Result<void> result;
    for (std::size_t arrived = 0; result && arrived < samples.size();) {
        const BlockState state = client.block(samples[arrived].tag).state;
        if (state == BlockState::ready || state == BlockState::failed) {
            ++arrived;
            continue;
        }
        client.begin_wait();
        auto progress = client.progress();
        if (!progress) {
            result = std::unexpected(progress.error());
        } else if (*progress == BlockClient::Progress::starved) {
            result = on_starved();
        }
    }
    client.end_wait();
    return result;
}

}  // namespace

Result<Batch> make_batch(const std::shared_ptr<BlockClient>& client, std::span<BatchSample> samples,
                         const BatchOptions& options, const std::function<Result<void>()>& on_starved) {
    for (;;) {
        if (auto arrived = await(*client, samples, on_starved); !arrived) return std::unexpected(arrived.error());
        std::shared_ptr<BatchState> state = client->take_batch_state();
        const Result<bool> is_full = state->fill(*client, samples, options);
        if (is_full && *is_full) return BatchState::hand_out(std::move(state), client);
        state->tags.clear();  // the samples keep their blocks
        client->release_batch(std::move(state));
        if (is_full) continue;
        if (options.is_planned) {
            for (const BatchSample& sample : samples) client->retry(sample.tag);
        }
        return std::unexpected(is_full.error());
    }
}

Result<bool> BatchState::fill(BlockClient& from, std::span<BatchSample> batch_samples, const BatchOptions& options) {
    for (const BatchSample& sample : batch_samples) tags.push_back(sample.tag);
    if (options.is_planned) from.free_one_slab(tags);
    std::uint64_t skipped = 0;
    bool has_refetch = false;
    for (BatchSample& sample : batch_samples) {
        const BlockEntry& entry = from.block(sample.tag);
        const bool has_failed = entry.state == BlockState::failed;
        if (has_failed && options.skip_failed) {
            ++skipped;
            continue;
        }
        Result<void> added;
        if (has_failed) {
            added = std::unexpected(block_error(from, entry, options.dataset));
        } else {
            added = add(from.manifest(), from.format(), sample.sample, entry.block, entry.bytes());
        }
        if (added) continue;
        if (!has_failed && added.error().code == ErrorCode::corrupt) {
            if (const auto refetched = from.refetch_damaged(sample.tag, added.error().message)) {
                from.release(std::exchange(sample.tag, *refetched));
                has_refetch = true;
                continue;
            }
        }
        if (!options.skip_failed) return std::unexpected(added.error());
        ++skipped;
    }
    if (has_refetch) return false;
    from.statistics().skipped_samples += skipped;
    return true;
}

Batch BatchState::hand_out(std::shared_ptr<BatchState> state, const std::shared_ptr<BlockClient>& client) {
    state->finish();
    client->hand_out(*state);
    client->statistics().samples += state->samples.size();
    client->statistics().bytes += state->bytes();
    state->client = client;
    return Batch(std::move(state));
}

Result<void> BatchState::add(const protocol::Manifest& manifest, SampleFormat& format, std::uint64_t sample,
                             std::uint32_t block_index, std::span<const std::byte> block) {
    const protocol::Block block_info = manifest.block(block_index);
    const protocol::Object object = manifest.object(block_info.object);
    const std::size_t fields_before = fields.size();
    FieldSink sink{.fields = fields, .texts = texts};
    const auto bytes = sample_bytes(manifest, sample, block_info, block);
    const auto key =
        bytes ? format.split(*bytes, object.path, sink) : Result<std::string_view>(std::unexpected(bytes.error()));
    if (!key) {
        fields.resize(fields_before);
        return std::unexpected(
            key.error().within("sample " + std::to_string(sample) + " in " + std::string(object.path)));
    }
    samples.push_back(
        {.index = sample, .key = *key, .label = object.label, .fields = {}, .structure = format.structure()});
    field_ends.push_back(static_cast<std::uint32_t>(fields.size()));
    if (manifest.has_rows()) {
        rows.push_back({.dataset_id = manifest.header().dataset_id,
                        .version = manifest.header().version,
                        .block = block_index,
                        .row = static_cast<std::uint32_t>(sample - block_info.first_sample),
                        .row_count = block_info.sample_count,
                        .block_bytes = block,
                        .details = manifest.block_details(block_index),
                        .head = format.rows_head(),
                        .columns = format.rows_columns()});
        row_bytes += block.size() / std::max<std::uint32_t>(1, block_info.sample_count);
    }
    return {};
}

void BatchState::finish() {
    std::uint32_t begin = 0;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        samples[i].fields = std::span<const Field>(fields).subspan(begin, field_ends[i] - begin);
        begin = field_ends[i];
    }
    for (std::size_t i = 0; i < rows.size(); ++i) samples[i].row = &rows[i];
}

std::uint64_t BatchState::bytes() const {
    std::uint64_t total = row_bytes;
    for (const Field& field : fields) total += field.bytes.size();
    return total;
}

void BatchState::clear() {
    samples.clear();
    fields.clear();
    rows.clear();
    row_bytes = 0;
    field_ends.clear();
    tags.clear();
    texts.clear();
    handed_out = false;
}

}  // namespace larder::detail

namespace larder {

Batch::Batch(std::shared_ptr<detail::BatchState> state) : state_(std::move(state)) {}
Batch::Batch(Batch&&) noexcept = default;

Batch& Batch::operator=(Batch&& other) noexcept {
    Batch old(std::move(*this));
    state_ = std::move(other.state_);
    return *this;
}

Batch::~Batch() {
    if (!state_) return;
    const std::shared_ptr<detail::BlockClient> client = std::move(state_->client);
    client->release_batch(std::move(state_));
}

std::span<const Sample> Batch::samples() const {
    return state_ ? std::span<const Sample>(state_->samples) : std::span<const Sample>{};
}

}  // namespace larder
