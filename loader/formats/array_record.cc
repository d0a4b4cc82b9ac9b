// ArrayRecord: a sample is a record. Its one field, "record", is the record's bytes.

#include "loader/formats/sample_format.h"

namespace larder::detail {
namespace {

class ArrayRecordFormat final : public SampleFormat {
public:
    Result<std::string_view> split(std::span<const std::byte> sample, std::string_view path, FieldSink& sink) override {
        sink.fields.push_back({.name = "record", .bytes = sample});
        return path;
    }
};

}  // namespace

std::unique_ptr<SampleFormat> make_array_record_format() {
    return std::make_unique<ArrayRecordFormat>();
}

}  // namespace larder::detail
