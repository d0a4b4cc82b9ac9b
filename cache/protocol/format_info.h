#pragma once

// Format info tells a client the fields of a sample, and the encoding and element type of each; the manifest's extents
// do not. The indexer reads it from the dataset's own index (mostly JSON) and puts it into the
// manifest as a small binary blob (ManifestHeader::format_info_offset), so that a training job needs no JSON parser.
// Self-describing formats (raw, WebDataset, TFRecord) have none.
//
// The blob, little-endian: layout u32 = 1, tokens per sample u32, bare u32 (0 or 1), columns u32; per column its fixed
// size u32 (0: varies) and element type u32, then name and encoding, each a length u32 and bytes; then the structure in
// the same way.
//
// A plain value. `parse_format_info` checks every length; errors name the offset in the blob.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/protocol/element_type.h"

namespace larder::protocol {

inline constexpr std::size_t kColumnsMax = 4096;
inline constexpr std::size_t kFormatInfoBytesMax = std::size_t{1} << 20;

struct FormatColumn {
    std::string name;
    std::string encoding;          // as the format spells it: "int", "ndarray:int32:3", "no_header_tensor:17"
    std::uint32_t size_bytes = 0;  // 0: each sample gives it
    ElementType element = ElementType::none;

    friend bool operator==(const FormatColumn&, const FormatColumn&) = default;
};

struct FormatInfo {
    std::vector<FormatColumn> columns;
    bool bare = false;                    // a sample is the bytes of its one column and nothing else
    std::uint32_t tokens_per_sample = 0;  // for token formats; 0: a sample is a document
    std::string structure;                // LitData: the JSON of the tree whose leaves the columns are

    friend bool operator==(const FormatInfo&, const FormatInfo&) = default;
};

std::string encode(const FormatInfo& info);
Result<FormatInfo> parse_format_info(std::span<const std::byte> blob);

}  // namespace larder::protocol
