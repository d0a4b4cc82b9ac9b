// MDS, LitData and Megatron: the manifest's format info names the columns. A bare sample (tokens) is its only column,
// so it is not parsed.

#include "cache/protocol/format_info.h"
#include "cache/protocol/sample_table.h"
#include "loader/formats/sample_format.h"

namespace larder::detail {
namespace {

class ColumnFormat final : public SampleFormat {
public:
    explicit ColumnFormat(protocol::FormatInfo info) : info_(std::move(info)) {}

    Result<std::string_view> split(std::span<const std::byte> sample, std::string_view path, FieldSink& sink) override {
        spans_.clear();
        if (info_.bare) {
            spans_.push_back(sample);
        } else if (auto split = protocol::split_columns(sample, info_.columns, spans_); !split) {
            return std::unexpected(split.error());
        }
        for (std::size_t i = 0; i < spans_.size(); ++i) {
            const protocol::FormatColumn& column = info_.columns[i];
            sink.fields.push_back(
                {.name = column.name, .bytes = spans_[i], .encoding = column.encoding, .element = column.element});
        }
        return path;
    }

    std::string_view structure() const override { return info_.structure; }

private:
    const protocol::FormatInfo info_;
    std::vector<std::span<const std::byte>> spans_;
};

}  // namespace

Result<std::unique_ptr<SampleFormat>> make_column_format(const protocol::Manifest& manifest) {
    auto info = protocol::parse_format_info(manifest.format_info());
    if (!info) return std::unexpected(info.error());
    return std::make_unique<ColumnFormat>(std::move(*info));
}

}  // namespace larder::detail
