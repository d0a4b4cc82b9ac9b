#include "cache/dataset/index_raw.h"

#include <algorithm>
#include <string_view>

#include "base/units.h"

namespace larder::cache {

Result<void> index_raw(ObjectListing listing, const std::string& where, DatasetContent& content,
                       std::vector<std::string>& notes) {
    notes = std::move(listing.notes);
    if (listing.objects.empty()) {
        std::string why = where + " has no files to train on";
        for (const auto& note : notes) why += "; " + note;
        return fail(ErrorCode::not_found, why);
    }
    content.classes = std::move(listing.top_directories);
    content.objects.reserve(listing.objects.size());
    for (const ObjectListing::Object& object : listing.objects) {
        const std::string_view path = listing.path(object);
        if (object.size_bytes > protocol::kBlockBytesMax) {
            return fail(ErrorCode::unsupported, where + "/" + std::string(path) + " has " +
                                                    format_bytes(object.size_bytes) + "; a raw sample has at most " +
                                                    format_bytes(protocol::kBlockBytesMax));
        }
        std::uint32_t label = protocol::kNoLabel;
        if (const std::size_t slash = path.find('/'); slash != std::string_view::npos) {
            const auto at = std::ranges::lower_bound(content.classes, path.substr(0, slash), {},
                                                     [](const std::string& name) { return std::string_view(name); });
            label = static_cast<std::uint32_t>(at - content.classes.begin());
        }
        content.objects.push_back({.name_offset = object.name_offset,
                                   .size_bytes = object.size_bytes,
                                   .mtime_ns = object.tag,
                                   .name_bytes = object.name_bytes,
                                   .label = label,
                                   .first_block = 0,
                                   .block_count = 1});
    }
    content.names = std::move(listing.names);
    return {};
}

}  // namespace larder::cache
