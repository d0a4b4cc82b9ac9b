#pragma once

// The remote as indexing sees it: lists the objects under the dataset's URL and reads ranges of their bytes. These
// calls block and serve worker threads; the data plane uses cache/remote.h instead. `file://` is
// cache/remote/file_objects.h; all others are cache/remote/http_objects.h.
//
// An object's `tag` identifies its version: the mtime in ns for a file; for other remotes a number derived from the
// version that the store names (HttpOrigin::version_header), else from Last-Modified. The data plane compares the tag
// at every read.
//
// Several threads may use one source at once; a reader belongs to one thread. Both may be destroyed in any order.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/protocol/byte_source.h"

namespace larder::cache {

// The objects under the root. Names share one string, because a dataset may have ten million of them.
struct ObjectListing {
    struct Object {
        std::uint64_t name_offset = 0;  // into `names`
        std::uint64_t size_bytes = 0;
        std::int64_t tag = 0;
        std::uint32_t name_bytes = 0;
    };

    std::string names;
    std::vector<Object> objects;               // sorted by path; never empty objects
    std::vector<std::string> top_directories;  // sorted; for file:// also directories without a file
    std::vector<std::string> empty;            // paths of empty objects; `objects` has none of them
    std::vector<std::string> notes;            // objects left out and why, one sentence each, for the user

    // Relative to the root.
    std::string_view path(const Object& object) const {
        return std::string_view(names).substr(object.name_offset, object.name_bytes);
    }
    void add(std::string_view path, std::uint64_t size_bytes, std::int64_t tag);
    void sort();  // sorts `objects` by path
};

// The bytes of one object. `size_bytes` and `tag` are from the time it was opened.
class ObjectReader : public protocol::ByteSource {
public:
    virtual std::int64_t tag() const = 0;
    // Gaps up to this size are cheaper to read through than to skip with a new request.
    virtual std::size_t near_bytes() const { return 16384; }
};

class ObjectSource {
public:
    virtual ~ObjectSource() = default;
    // For messages: the URL without secrets, or the directory.
    virtual std::string description() const = 0;
    // Lists all objects. Calls `found` now and then with the number of objects and bytes so far. Fails with
    // ErrorCode::cancelled once a stop is requested.
    virtual Result<ObjectListing> list(const std::function<void(std::uint64_t objects, std::uint64_t bytes)>& found,
                                       std::stop_token stop) = 0;
    // Opens the object at `path`, relative to the root; `list` need not have returned it. Fails with
    // ErrorCode::not_found if there is none.
    virtual Result<std::unique_ptr<ObjectReader>> open(const std::string& path) = 0;
    // Opens an object whose size and tag are known. If the object has changed since, open_as or a later read fails with
    // ErrorCode::changed.
    virtual Result<std::unique_ptr<ObjectReader>> open_as(const std::string& path, std::uint64_t size_bytes,
                                                          std::int64_t tag);
    // False if objects can only be read whole. Known only once an object has been listed or opened.
    virtual bool serves_ranges() const { return true; }
};

}  // namespace larder::cache
