#include "loader/batch_state.h"

#include <utility>

#include "cache/protocol/sample_table.h"
#include "loader/block_client.h"

namespace larder::detail {
namespace {

// The bytes of a sample within those of its block.
Result<std::span<const std::byte>> sample_bytes(const protocol::Manifest& manifest, std::uint64_t sample,
                                                const protocol::Block& block_info, std::span<const std::byte> block) {
    if (manifest.samples_by_ordinal()) {
        return protocol::sample_in(block, static_cast<std::uint32_t>(sample - block_info.first_sample),
                                   block_info.sample_count);
    }
    const protocol::SampleExtent extent = manifest.sample(sample);
    return block.subspan(extent.offset, extent.length);
}

}  // namespace

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
    return {};
}

void BatchState::finish() {
    std::uint32_t begin = 0;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        samples[i].fields = std::span<const Field>(fields).subspan(begin, field_ends[i] - begin);
        begin = field_ends[i];
    }
}

std::uint64_t BatchState::bytes() const {
    std::uint64_t total = 0;
    for (const Field& field : fields) total += field.bytes.size();
    return total;
}

void BatchState::clear() {
    samples.clear();
    fields.clear();
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
