#include "loader/formats/sample_format.h"

namespace larder::detail {

using protocol::Format;

Result<std::unique_ptr<SampleFormat>> make_sample_format(const protocol::Manifest& manifest) {
    if (manifest.has_rows()) return make_row_format(manifest);
    switch (manifest.sample_format()) {
        case Format::raw: return make_raw_format();
        case Format::webdataset: return make_webdataset_format();
        case Format::tfrecord: return make_tfrecord_format();
        case Format::array_record: return make_array_record_format();
        case Format::mds:
        case Format::litdata:
        case Format::megatron: return make_column_format(manifest);
        case Format::parquet: break;  // has rows
        case Format::larder: break;   // packed files hold one of the other formats
    }
    return fail(ErrorCode::unsupported, "this client does not know the dataset's format: install a newer Larder");
}

}  // namespace larder::detail
