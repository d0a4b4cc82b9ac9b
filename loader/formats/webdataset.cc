// WebDataset: a sample is a run of tar members, each a field.

#include "cache/protocol/tar.h"
#include "loader/formats/sample_format.h"

namespace larder::detail {
namespace {

class WebdatasetFormat final : public SampleFormat {
public:
    Result<std::string_view> split(std::span<const std::byte> sample, std::string_view, FieldSink& sink) override {
        members_.clear();
        auto key = protocol::split_sample(sample, members_, sink.texts);
        if (!key) return key;
        for (const protocol::TarField& member : members_) {
            sink.fields.push_back({.name = member.name, .bytes = member.bytes});
        }
        return key;
    }

private:
    std::vector<protocol::TarField> members_;
};

}  // namespace

std::unique_ptr<SampleFormat> make_webdataset_format() {
    return std::make_unique<WebdatasetFormat>();
}

}  // namespace larder::detail
