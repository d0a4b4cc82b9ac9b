// TFRecord: a sample is a record. Its checksums are verified here; its one field, "record", is the data.

#include "cache/protocol/tfrecord.h"

#include "loader/formats/sample_format.h"

namespace larder::detail {
namespace {

class TfrecordFormat final : public SampleFormat {
public:
    Result<std::string_view> split(std::span<const std::byte> sample, std::string_view path, FieldSink& sink) override {
        const auto data = protocol::record_data(sample);
        if (!data) return std::unexpected(data.error());
        sink.fields.push_back({.name = "record", .bytes = *data, .encoding = "tfrecord"});
        return path;
    }
};

}  // namespace

std::unique_ptr<SampleFormat> make_tfrecord_format() {
    return std::make_unique<TfrecordFormat>();
}

}  // namespace larder::detail
