#pragma once

// How indexing sees a remote: what objects lie under the dataset's URL, and ranges of their bytes. The data plane has
// its own door (cache/remote.h); this one blocks, and serves worker threads. `file://` is cache/remote/file_objects.h;
// `http(s)://` and `s3://` are cache/remote/http_objects.h.
//
// An object's `tag` stands for its version: a file's mtime in ns, for other remotes a number made of the ETag, else
// Last-Modified. The data plane compares it at every read.
//
// A source may be used from several threads at once, a reader from one. Both may be destroyed in any order.

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

// What lies under the root. Names share one string, because a dataset may have ten million of them.
struct ObjectListing {
    struct Object {
        std::uint64_t name_offset = 0;  // into `names`
        std::uint64_t size_bytes = 0;
        std::int64_t tag = 0;
        std::uint32_t name_bytes = 0;
    };

    std::string names;
    std::vector<Object> objects;               // sorted by path; none is empty
    std::vector<std::string> top_directories;  // sorted; of file:// those without a file too
    std::vector<std::string> empty;            // paths of objects without a byte, of which there are no others here
    std::vector<std::string> notes;            // what was left out and why, one sentence each, for the user

    // Relative to the root.
    std::string_view path(const Object& object) const {
        return std::string_view(names).substr(object.name_offset, object.name_bytes);
    }
    void add(std::string_view path, std::uint64_t size_bytes, std::int64_t tag);
    void sort();  // the objects
};

// One object's bytes. `size_bytes` and `tag` are those of the moment it was opened.
class ObjectReader : public protocol::ByteSource {
public:
    virtual std::int64_t tag() const = 0;
    // Reading on for so many bytes costs less than asking again.
    virtual std::size_t near_bytes() const { return 16384; }
};

class ObjectSource {
public:
    virtual ~ObjectSource() = default;
    // For messages: the URL without secrets, or the directory.
    virtual std::string description() const = 0;
    // All objects; `found` hears now and then how many, and how many bytes. ErrorCode::cancelled once `stop` is asked.
    virtual Result<ObjectListing> list(const std::function<void(std::uint64_t objects, std::uint64_t bytes)>& found,
                                       std::stop_token stop) = 0;
    // `path` is one that `list` gave, or any other relative path; ErrorCode::not_found where there is none.
    virtual Result<std::unique_ptr<ObjectReader>> open(const std::string& path) = 0;
    // The same of an object that is known; ErrorCode::changed, here or when it is read, where it is another now.
    virtual Result<std::unique_ptr<ObjectReader>> open_as(const std::string& path, std::uint64_t size_bytes,
                                                          std::int64_t tag);
    // Known of what was listed or opened; false: its objects can only be had whole.
    virtual bool serves_ranges() const { return true; }
    // The whole of a small object (an index file): at most `bytes_max`, or an error.
    Result<std::vector<std::byte>> read_all(const std::string& path, std::uint64_t bytes_max);
};

}  // namespace larder::cache
