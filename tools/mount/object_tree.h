#pragma once

// The directories and files that the paths of a manifest's objects name. Nothing is stored for them: a node's number
// says where it is in the manifest, whose objects are sorted by path. So a tree of millions of files takes no memory,
// and a number is valid as long as the manifest. Functions are pure and may be called from any thread.
//
// Names of more than 255 bytes are left out: no file system has them. A path may be both an object and the directory of
// others, as on S3. Then the object is hidden, so that the others can be reached.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cache/protocol/manifest.h"

namespace larder::mount {

inline constexpr std::size_t kNameBytesMax = 255;

// An object or a directory.
struct ObjectNode {
    bool is_directory = false;
    std::uint64_t object = 0;  // the object itself; of a directory: its first object
    std::uint32_t depth = 0;   // of a directory: the number of names in its path; 0: the root

    bool operator==(const ObjectNode&) const = default;
};

// The inode number of a node: 1 for the root.
std::uint64_t inode_of(const ObjectNode& node);
// The node with this number; nothing if the manifest has none.
std::optional<ObjectNode> node_of(std::uint64_t inode, const protocol::Manifest& manifest);

class ObjectTree {
public:
    // `manifest` must outlive the tree.
    explicit ObjectTree(const protocol::Manifest& manifest) : manifest_(manifest) {}

    // The node of this name in the directory. O(log objects).
    std::optional<ObjectNode> find(const ObjectNode& directory, std::string_view name) const;

    struct Entry {
        std::string_view name;
        ObjectNode node;
        std::uint64_t next = 0;  // where the listing goes on
    };
    // The first entry at or behind the position; nothing at the end. A listing begins at 0.
    // O(log objects).
    std::optional<Entry> entry_at(const ObjectNode& directory, std::uint64_t position) const;

    // The object's path, or the directory's without a slash at its end.
    std::string_view path_of(const ObjectNode& node) const;

private:
    // The index of the first object whose path is not less.
    std::uint64_t lower_bound(std::string_view path) const;

    const protocol::Manifest& manifest_;
};

}  // namespace larder::mount
