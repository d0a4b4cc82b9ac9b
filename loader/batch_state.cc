#include "loader/batch_state.h"

#include <utility>

#include "loader/block_client.h"

namespace larder::detail {
namespace {

std::string_view suffix_of(std::string_view path) {
    const std::size_t slash = path.rfind('/');
    const std::string_view file = slash == std::string_view::npos ? path : path.substr(slash + 1);
    const std::size_t dot = file.rfind('.');
    return dot == std::string_view::npos ? std::string_view{} : file.substr(dot + 1);
}

}  // namespace

Result<void> BatchState::add(const protocol::Manifest& manifest, std::uint64_t sample, std::uint32_t block_index,
                             const std::byte* block) {
    const protocol::SampleExtent extent = manifest.sample(sample);
    const std::span<const std::byte> bytes(block + extent.offset, extent.length);
    const protocol::Object object = manifest.object(manifest.block(block_index).object);
    Sample added{.index = sample, .key = object.path, .label = object.label, .fields = {}};
    if (manifest.header().format == protocol::Format::webdataset) {
        tar_fields.clear();
        auto key = protocol::split_sample(bytes, tar_fields, texts);
        if (!key) {
            return std::unexpected(
                key.error().within("sample " + std::to_string(sample) + " in " + std::string(object.path)));
        }
        added.key = *key;
        for (const protocol::TarField& field : tar_fields) fields.push_back({.name = field.name, .bytes = field.bytes});
    } else {
        fields.push_back({.name = suffix_of(object.path), .bytes = bytes});
    }
    samples.push_back(added);
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
    client->give_back(std::move(state_));
}

std::span<const Sample> Batch::samples() const {
    return state_ ? std::span<const Sample>(state_->samples) : std::span<const Sample>{};
}

}  // namespace larder
