#pragma once

// Converts a sample of any format to tar members: one member for each field, named "<sample, nine digits>.<suffix>".
//
// - Raw: suffix is the file's suffix in lower case, or "bin" if that cannot name a field. A second member "cls" holds
//   the class as decimal text. The number of the sample is the file's position in the order of paths.
// - WebDataset: the sample's own members.
// - Formats with columns: suffix is the column's name, followed by the usual suffix of its encoding, if any: txt, json,
//   jpg, png. MDS's "int" becomes decimal text with the suffix "cls". All other bytes are unchanged.
// - TFRecord: one member "record" with the record's data.

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/pack_source.h"
#include "cache/protocol/format_info.h"
#include "cache/protocol/tar.h"

namespace larder::cache {

struct NewMember {
    std::string name;
    std::span<const std::byte> bytes;
};

class PackMembers {
public:
    static Result<PackMembers> of(const protocol::Manifest& manifest);
    // The members are valid until the next call, and no longer than the sample's bytes.
    Result<std::span<const NewMember>> split(const SourceSample& sample);

private:
    PackMembers(protocol::Format format, protocol::FormatInfo info) : format_(format), info_(std::move(info)) {}
    void add(const std::string& suffix, std::span<const std::byte> bytes);
    void add_text(const std::string& suffix, std::string text);
    void add_column(const protocol::FormatColumn& column, std::span<const std::byte> bytes);
    Result<void> split_members(const SourceSample& sample);
    Result<void> split_columns(const SourceSample& sample);

    protocol::Format format_;
    protocol::FormatInfo info_;
    std::string key_;
    std::vector<NewMember> members_;
    std::deque<std::string> texts_;
    std::vector<protocol::TarField> fields_;
    std::vector<std::span<const std::byte>> spans_;
};

}  // namespace larder::cache
