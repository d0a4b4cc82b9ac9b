#include "cache/protocol/format_info.h"

#include "cache/protocol/claims.h"
#include "cache/protocol/little_endian.h"

namespace larder::protocol {
namespace {

constexpr std::uint32_t kLayout = 1;

void put(std::string& blob, std::uint32_t number) {
    blob.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void put(std::string& blob, const std::string& text) {
    put(blob, static_cast<std::uint32_t>(text.size()));
    blob += text;
}

// Reads the blob piece by piece. After the first missing piece, `failed` stays set and all reads return empty values.
class Reader {
public:
    explicit Reader(std::span<const std::byte> blob) : blob_(blob) {}

    std::uint32_t number() {
        const auto bytes = take(sizeof(std::uint32_t));
        return failed_ ? 0 : load<std::uint32_t>(bytes);
    }
    std::string text() {
        const auto bytes = take(number());
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    bool failed() const { return failed_; }
    std::size_t position() const { return position_; }
    bool at_end() const { return position_ == blob_.size(); }

private:
    std::span<const std::byte> take(std::size_t bytes) {
        if (failed_ || !lies_within(position_, bytes, blob_.size())) {
            failed_ = true;
            return {};
        }
        position_ += bytes;
        return blob_.subspan(position_ - bytes, bytes);
    }

    std::span<const std::byte> blob_;
    std::size_t position_ = 0;
    bool failed_ = false;
};

std::unexpected<Error> format_info_error(std::size_t offset, const std::string& what) {
    return fail(ErrorCode::corrupt, "format info: at byte " + std::to_string(offset) + ": " + what);
}

}  // namespace

std::string encode(const FormatInfo& info) {
    std::string blob;
    put(blob, kLayout);
    put(blob, info.tokens_per_sample);
    put(blob, static_cast<std::uint32_t>(info.bare));
    put(blob, static_cast<std::uint32_t>(info.columns.size()));
    for (const FormatColumn& column : info.columns) {
        put(blob, column.size_bytes);
        put(blob, static_cast<std::uint32_t>(column.element));
        put(blob, column.name);
        put(blob, column.encoding);
    }
    put(blob, info.structure);
    return blob;
}

Result<FormatInfo> parse_format_info(std::span<const std::byte> blob) {
    Reader reader(blob);
    FormatInfo info;
    const std::uint32_t layout = reader.number();
    if (!reader.failed() && layout != kLayout) {
        return fail(ErrorCode::unsupported,
                    "format info layout " + std::to_string(layout) + " is unknown here; index the dataset again");
    }
    info.tokens_per_sample = reader.number();
    const std::uint32_t bare = reader.number();
    const std::uint32_t columns = reader.number();
    if (columns > kColumnsMax) {
        return format_info_error(
            12, std::to_string(columns) + " columns; at most " + std::to_string(kColumnsMax) + " are read");
    }
    for (std::uint32_t i = 0; i < columns && !reader.failed(); ++i) {
        FormatColumn column;
        column.size_bytes = reader.number();
        const std::uint32_t element = reader.number();
        if (element >= kElementTypeEnd) {
            return format_info_error(reader.position(), "unknown element type " + std::to_string(element));
        }
        column.element = static_cast<ElementType>(element);
        column.name = reader.text();
        column.encoding = reader.text();
        info.columns.push_back(std::move(column));
    }
    info.structure = reader.text();
    if (reader.failed()) return format_info_error(reader.position(), "it is cut off");
    if (!reader.at_end()) return format_info_error(reader.position(), "it should end here");
    if (bare > 1 || (bare == 1 && columns != 1)) return format_info_error(8, "a bare sample has one column");
    info.bare = bare == 1;
    return info;
}

}  // namespace larder::protocol
