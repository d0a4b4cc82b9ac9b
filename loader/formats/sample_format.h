#pragma once

// Turns the bytes of a sample into its fields: one small class per format, chosen once by the manifest. The parsers are
// those of cache/protocol; here their results get names, encodings and element types. Packed files hold samples of one
// of these formats, unchanged. Nothing is copied: fields are spans of the sample's bytes. To add a format, write a
// class in a file of its own here, and add a line to make_sample_format.
//
// A SampleFormat belongs to the client of one dataset and is used on its thread. Its results are valid as long as the
// SampleFormat, the manifest, the sample's bytes and `texts` are.

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

// Receives the fields of a batch's samples.
struct FieldSink {
    std::vector<Field>& fields;
    std::deque<std::string>& texts;  // for names that are not in the data verbatim
};

class SampleFormat {
public:
    virtual ~SampleFormat() = default;
    // Appends the sample's fields and returns its key. `path` is that of its object.
    virtual Result<std::string_view> split(std::span<const std::byte> sample, std::string_view path,
                                           FieldSink& sink) = 0;
    // See Sample::structure.
    virtual std::string_view structure() const { return {}; }
    // See RowPlace, for samples that are rows.
    virtual std::span<const std::byte> rows_head() const { return {}; }
    virtual std::span<const std::string_view> rows_columns() const { return {}; }
};

Result<std::unique_ptr<SampleFormat>> make_sample_format(const protocol::Manifest& manifest);

std::unique_ptr<SampleFormat> make_raw_format();
std::unique_ptr<SampleFormat> make_webdataset_format();
std::unique_ptr<SampleFormat> make_tfrecord_format();
std::unique_ptr<SampleFormat> make_array_record_format();
// Parquet, and LitData's rows: `split` is called with the bytes of the row's block, and gives no fields.
Result<std::unique_ptr<SampleFormat>> make_row_format(const protocol::Manifest& manifest);
// MDS, LitData and Megatron, as the manifest's format info says.
Result<std::unique_ptr<SampleFormat>> make_column_format(const protocol::Manifest& manifest);

}  // namespace larder::detail
