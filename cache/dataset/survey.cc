#include "cache/dataset/survey.h"

#include <algorithm>
#include <map>

#include "cache/dataset/dataset_root.h"
#include "cache/dataset/detect_format.h"
#include "cache/dataset/index_choices.h"
#include "cache/dataset/index_raw.h"
#include "cache/remote/object_source.h"
#include "cache/remote/remote_place.h"

namespace larder::cache {
namespace {

std::string_view suffix_of(std::string_view path) {
    const std::string_view name = path.substr(path.rfind('/') + 1);
    const std::size_t dot = name.rfind('.');
    return dot == std::string_view::npos ? std::string_view() : name.substr(dot);
}

void count_suffixes(const ObjectListing& listing, std::vector<DatasetSurvey::Suffix>& suffixes) {
    std::map<std::string_view, DatasetSurvey::Suffix> counted;
    for (const ObjectListing::Object& object : listing.objects) {
        DatasetSurvey::Suffix& suffix = counted[suffix_of(listing.path(object))];
        ++suffix.objects;
        suffix.bytes += object.size_bytes;
    }
    for (auto& [text, suffix] : counted) {
        suffix.suffix = text;
        suffixes.push_back(std::move(suffix));
    }
    std::ranges::stable_sort(suffixes, std::ranges::greater(), &DatasetSurvey::Suffix::objects);
    if (suffixes.size() > DatasetSurvey::kNamesMax) suffixes.resize(DatasetSurvey::kNamesMax);
}

// Fails if names and sizes show that adding would fail.
Result<void> check_files(const ObjectListing& listing, protocol::Format format, const std::string& where) {
    if (format == protocol::Format::raw) {
        DatasetContent content;
        std::vector<std::string> notes;
        return index_raw(listing, where, content, notes);
    }
    if (may_have_samples(listing, format)) return {};
    return fail(ErrorCode::not_found, where + " has no files of the format " + std::string(name(format)));
}

}  // namespace

Result<DatasetSurvey> survey_dataset(const IndexRequest& request, const IndexProgressCallback& progress,
                                     std::stop_token stop) {
    auto root = find_dataset_root(request);
    if (!root) return std::unexpected(root.error());
    const std::shared_ptr<ObjectSource> source = root->place->objects(stop);
    DatasetSurvey survey{.url = root->place->url().text()};
    ObjectListing listing;
    if (root->only_shard.empty()) {
        const auto report_found = [&](std::uint64_t objects, std::uint64_t bytes) {
            if (progress) progress({.objects_done = objects, .bytes_done = bytes});
        };
        auto listed = source->list(report_found, stop);
        if (!listed) return std::unexpected(listed.error());
        listing = std::move(*listed);
    } else {
        auto reader = source->open(root->only_shard);
        if (!reader) return std::unexpected(reader.error());
        listing.add(root->only_shard, (*reader)->size_bytes(), (*reader)->tag());
    }
    const auto& asked = request.definition.format;
    const auto format = asked ? Result<protocol::Format>(*asked) : detect_format(*source, listing);
    if (!format) return std::unexpected(format.error());
    if (auto chosen = check_choices(request, *root, *format); !chosen) return std::unexpected(chosen.error());
    if (auto checked = check_files(listing, *format, source->description()); !checked) {
        return std::unexpected(checked.error());
    }
    survey.format = *format;
    survey.objects = listing.objects.size();
    for (const ObjectListing::Object& object : listing.objects) survey.bytes += object.size_bytes;
    survey.top_directories = listing.top_directories.size();
    survey.empty_objects = listing.empty.size();
    count_suffixes(listing, survey.suffixes);
    const MixedListing mixed = mixed_listing(listing, *format);
    survey.odd_objects = mixed.odd_paths.size();
    for (const std::string_view path : mixed.odd_paths) {
        if (survey.odd_paths.size() < DatasetSurvey::kNamesMax) survey.odd_paths.emplace_back(path);
    }
    survey.notes = listing.notes;
    if (!asked && !mixed.doubt.empty()) survey.notes.push_back(mixed.doubt);
    return survey;
}

}  // namespace larder::cache
