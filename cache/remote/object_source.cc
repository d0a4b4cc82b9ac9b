#include "cache/remote/object_source.h"

#include <algorithm>

namespace larder::cache {

void ObjectListing::add(std::string_view path, std::uint64_t size_bytes, std::int64_t tag) {
    objects.push_back({.name_offset = names.size(),
                       .size_bytes = size_bytes,
                       .tag = tag,
                       .name_bytes = static_cast<std::uint32_t>(path.size())});
    names += path;
}

void ObjectListing::sort() {
    std::ranges::sort(objects, {}, [this](const Object& object) { return path(object); });
}

Result<std::unique_ptr<ObjectReader>> ObjectSource::open_as(const std::string& path, std::uint64_t size_bytes,
                                                            std::int64_t tag) {
    auto opened = open(path);
    if (!opened) return opened;
    if ((*opened)->size_bytes() < size_bytes) {
        return fail(ErrorCode::changed, path + " became shorter while it was read");
    }
    if ((*opened)->size_bytes() != size_bytes || (*opened)->tag() != tag) {
        return fail(ErrorCode::changed, path + " changed while it was read");
    }
    return opened;
}

}  // namespace larder::cache
