#include "cache/dataset/pack_members.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "cache/protocol/little_endian.h"
#include "cache/protocol/sample_table.h"
#include "cache/protocol/tfrecord.h"

namespace larder::cache {
namespace {

using protocol::Format;

// Returns the field name for a file of a raw dataset.
std::string field_name(std::string_view path) {
    const std::string_view base = path.substr(path.rfind('/') + 1);
    const std::size_t dot = base.rfind('.');
    std::string suffix(dot == std::string_view::npos ? "" : base.substr(dot + 1));
    const auto is_letter_or_digit = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
    for (char& c : suffix) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    // "cls" is reserved for the label.
    if (suffix.empty() || suffix == "cls" || !std::ranges::all_of(suffix, is_letter_or_digit)) return "bin";
    return suffix;
}

std::string nine_digits(std::uint64_t number) {
    char text[32];
    const int length = std::snprintf(text, sizeof text, "%09llu", static_cast<unsigned long long>(number));
    return {text, static_cast<std::size_t>(length)};
}

std::string_view usual_suffix(std::string_view encoding) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 4> known{
        {{"str", "txt"}, {"json", "json"}, {"jpeg", "jpg"}, {"png", "png"}}};
    const auto found = std::ranges::find(known, encoding, &std::pair<std::string_view, std::string_view>::first);
    return found == known.end() ? std::string_view{} : found->second;
}

std::string with_suffix(const std::string& name, std::string_view suffix) {
    if (suffix.empty() || name == suffix) return name;
    return name + "." + std::string(suffix);
}

}  // namespace

Result<PackMembers> PackMembers::of(const protocol::Manifest& manifest) {
    protocol::FormatInfo info;
    if (!manifest.format_info().empty()) {
        auto parsed = protocol::parse_format_info(manifest.format_info());
        if (!parsed) return std::unexpected(parsed.error());
        info = std::move(*parsed);
    }
    // A slash would end the file name, and so change the sample's key.
    for (protocol::FormatColumn& column : info.columns) std::ranges::replace(column.name, '/', '_');
    return PackMembers(manifest.sample_format(), std::move(info));
}

void PackMembers::add(const std::string& suffix, std::span<const std::byte> bytes) {
    members_.push_back({.name = key_ + "." + suffix, .bytes = bytes});
}

void PackMembers::add_text(const std::string& suffix, std::string text) {
    texts_.push_back(std::move(text));
    add(suffix, std::as_bytes(std::span(texts_.back())));
}

void PackMembers::add_column(const protocol::FormatColumn& column, std::span<const std::byte> bytes) {
    if (column.encoding == "int" && column.element == ElementType::int64 && bytes.size() == sizeof(std::int64_t)) {
        add_text(with_suffix(column.name, "cls"), std::to_string(protocol::load<std::int64_t>(bytes)));
    } else {
        add(with_suffix(column.name, usual_suffix(column.encoding)), bytes);
    }
}

Result<void> PackMembers::split_members(const SourceSample& sample) {
    fields_.clear();
    const auto key = protocol::split_sample(sample.bytes, fields_, texts_);
    if (!key) return std::unexpected(key.error());
    for (const protocol::TarField& field : fields_) add(std::string(field.name), field.bytes);
    return {};
}

Result<void> PackMembers::split_columns(const SourceSample& sample) {
    spans_.clear();
    if (info_.bare) {
        spans_.push_back(sample.bytes);
    } else if (auto split = protocol::split_columns(sample.bytes, info_.columns, spans_); !split) {
        return split;
    }
    for (std::size_t i = 0; i < spans_.size(); ++i) add_column(info_.columns[i], spans_[i]);
    return {};
}

Result<std::span<const NewMember>> PackMembers::split(const SourceSample& sample) {
    members_.clear();
    texts_.clear();
    key_ = nine_digits(sample.index);
    Result<void> done;
    switch (format_) {
        case Format::raw:
            add(field_name(sample.path), sample.bytes);
            if (sample.label != protocol::kNoLabel) add_text("cls", std::to_string(sample.label));
            break;
        case Format::webdataset: done = split_members(sample); break;
        case Format::tfrecord: {
            const auto data = protocol::record_data(sample.bytes);
            if (data) {
                add("record", *data);
            } else {
                done = std::unexpected(data.error());
            }
            break;
        }
        case Format::array_record: add("record", sample.bytes); break;
        case Format::mds:
        case Format::litdata:
        case Format::megatron: done = split_columns(sample); break;
        case Format::larder:
        case Format::parquet: done = fail(ErrorCode::unsupported, "samples of a format that is not packed"); break;
    }
    if (!done) {
        return std::unexpected(
            done.error().within("sample " + std::to_string(sample.index) + " in " + std::string(sample.path)));
    }
    return members_;
}

}  // namespace larder::cache
