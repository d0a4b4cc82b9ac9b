#pragma once

// How the bytes of a sample become its fields: one small class a format, chosen once by the manifest. The parsers
// themselves are those of cache/protocol; here their results get names, encodings and element types. Packed files hold
// samples of one of these formats, as they were. Nothing is copied:
// fields are spans of the sample's bytes. To add a format: a class in a file of its own here, a line in
// make_sample_format.
//
// A SampleFormat belongs to the client of one dataset and is used by its thread. What it gives out lives as long as it,
// the manifest, the sample's bytes and `texts`.

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/protocol/manifest.h"
#include "loader/larder.h"

namespace larder::detail {

// Where the fields of a batch's samples go.
struct FieldSink {
    std::vector<Field>& fields;
    std::deque<std::string>& texts;  // for names that do not stand in the data as they are
};

class SampleFormat {
public:
    virtual ~SampleFormat() = default;
    // Appends the sample's fields; returns its key. `path` is its object's.
    virtual Result<std::string_view> split(std::span<const std::byte> sample, std::string_view path,
                                           FieldSink& sink) = 0;
    // See Sample::structure.
    virtual std::string_view structure() const { return {}; }
};

Result<std::unique_ptr<SampleFormat>> make_sample_format(const protocol::Manifest& manifest);

std::unique_ptr<SampleFormat> make_raw_format();
std::unique_ptr<SampleFormat> make_webdataset_format();
std::unique_ptr<SampleFormat> make_tfrecord_format();
// MDS, LitData and Megatron: what the manifest's format info says.
Result<std::unique_ptr<SampleFormat>> make_column_format(const protocol::Manifest& manifest);

}  // namespace larder::detail
