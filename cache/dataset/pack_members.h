#pragma once

// What a sample of any format becomes in a tar: a member for each field, "<sample, nine digits>.<suffix>".
//
// - Raw: the file's suffix in lower case ("bin" where it has none that can name a field); its class as decimal text in
//   "cls". The sample is the file's place in the order of paths.
// - WebDataset: the members it has.
// - Formats of columns: the column's name, and behind it the usual suffix of its encoding where there is one: txt,
// json,
//   jpg, png. MDS's "int" becomes decimal text, "cls". All other bytes stay as they are.
// - TFRecord: the record's data, "record".

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
    // Valid until the next call, and while the sample's bytes are.
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
