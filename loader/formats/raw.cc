// Raw: a sample is a file. Its one field is named by the file's suffix.

#include "loader/formats/sample_format.h"

namespace larder::detail {
namespace {

std::string_view suffix_of(std::string_view path) {
    const std::size_t slash = path.rfind('/');
    const std::string_view file = slash == std::string_view::npos ? path : path.substr(slash + 1);
    const std::size_t dot = file.rfind('.');
    return dot == std::string_view::npos ? std::string_view{} : file.substr(dot + 1);
}

class RawFormat final : public SampleFormat {
public:
    Result<std::string_view> split(std::span<const std::byte> sample, std::string_view path, FieldSink& sink) override {
        sink.fields.push_back({.name = suffix_of(path), .bytes = sample});
        return path;
    }
};

}  // namespace

std::unique_ptr<SampleFormat> make_raw_format() {
    return std::make_unique<RawFormat>();
}

}  // namespace larder::detail
