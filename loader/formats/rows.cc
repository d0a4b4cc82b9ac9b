// Rows of tables, which are Parquet's samples and some of LitData's. The bytes of a row are spread over its block, so
// it has no fields: the training job has Arrow decode the block (RowPlace).

#include "cache/protocol/format_info.h"
#include "loader/formats/sample_format.h"

namespace larder::detail {
namespace {

class RowFormat final : public SampleFormat {
public:
    explicit RowFormat(protocol::FormatInfo info) : info_(std::move(info)) {
        columns_.reserve(info_.columns.size());
        for (const protocol::FormatColumn& column : info_.columns) columns_.push_back(column.name);
    }

    Result<std::string_view> split(std::span<const std::byte>, std::string_view path, FieldSink&) override {
        return path;
    }
    std::span<const std::byte> rows_head() const override { return std::as_bytes(std::span(info_.structure)); }
    std::span<const std::string_view> rows_columns() const override { return columns_; }

private:
    const protocol::FormatInfo info_;
    std::vector<std::string_view> columns_;
};

}  // namespace

Result<std::unique_ptr<SampleFormat>> make_row_format(const protocol::Manifest& manifest) {
    auto info = protocol::parse_format_info(manifest.format_info());
    if (!info) return std::unexpected(info.error());
    const bool is_parquet = manifest.sample_format() == protocol::Format::parquet;
    if (info->structure.empty() == is_parquet) {
        return fail(ErrorCode::corrupt, "manifest: its schema does not fit its format; index the dataset again");
    }
    return std::make_unique<RowFormat>(std::move(*info));
}

}  // namespace larder::detail
