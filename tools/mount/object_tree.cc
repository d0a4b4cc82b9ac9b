#include "tools/mount/object_tree.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::mount {
namespace {

// An inode number: 1 for the root; for other directories the depth above the index of the first object; for files
// kFile and the object's index.
constexpr std::uint64_t kRoot = 1;
constexpr unsigned kDepthShift = 40;
constexpr std::uint64_t kObjectMask = (std::uint64_t{1} << kDepthShift) - 1;
constexpr std::uint64_t kFile = std::uint64_t{1} << 62;

// The position behind the first `depth` names of a path that has more.
std::size_t end_of_names(std::string_view path, std::uint32_t depth) {
    std::size_t end = 0;
    for (std::uint32_t i = 0; i < depth; ++i) {
        const std::size_t slash = path.find('/', i == 0 ? 0 : end + 1);
        if (slash == std::string_view::npos) return path.size();
        end = slash;
    }
    return end;
}

bool is_below(std::string_view path, std::string_view directory) {
    return directory.empty() ||
           (path.size() > directory.size() && path.starts_with(directory) && path[directory.size()] == '/');
}

}  // namespace

std::uint64_t inode_of(const ObjectNode& node) {
    if (!node.is_directory) return kFile | node.object;
    return node.depth == 0 ? kRoot : (std::uint64_t{node.depth} << kDepthShift) | node.object;
}

std::optional<ObjectNode> node_of(std::uint64_t inode, const protocol::Manifest& manifest) {
    if (inode == kRoot) return ObjectNode{.is_directory = true};
    ObjectNode node{.is_directory = (inode & kFile) == 0, .object = inode & kObjectMask};
    if (node.object >= manifest.object_count()) return std::nullopt;
    if (!node.is_directory) return inode == (kFile | node.object) ? std::optional(node) : std::nullopt;
    node.depth = static_cast<std::uint32_t>(inode >> kDepthShift);
    const auto slashes = std::ranges::count(manifest.object(node.object).path, '/');
    if (node.depth == 0 || node.depth > slashes) return std::nullopt;
    return node;
}

std::uint64_t ObjectTree::lower_bound(std::string_view path) const {
    std::uint64_t first = 0;
    std::uint64_t end = manifest_.object_count();
    while (first < end) {
        const std::uint64_t middle = first + (end - first) / 2;
        if (manifest_.object(middle).path < path) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return first;
}

std::string_view ObjectTree::path_of(const ObjectNode& node) const {
    if (node.is_directory && node.depth == 0) return {};
    const std::string_view path = manifest_.object(node.object).path;
    return node.is_directory ? path.substr(0, end_of_names(path, node.depth)) : path;
}

std::optional<ObjectNode> ObjectTree::find(const ObjectNode& directory, std::string_view name) const {
    LARDER_ASSERT(directory.is_directory);
    if (name.empty() || name.find('/') != std::string_view::npos) return std::nullopt;
    std::string path(path_of(directory));
    if (!path.empty()) path += '/';
    path += name;
    const std::size_t length = path.size();
    path += '/';
    const std::uint64_t below = lower_bound(path);
    if (below < manifest_.object_count() && manifest_.object(below).path.starts_with(path)) {
        return ObjectNode{.is_directory = true, .object = below, .depth = directory.depth + 1};
    }
    path.resize(length);
    const auto object = manifest_.find_object(path);
    if (!object) return std::nullopt;
    return ObjectNode{.object = *object};
}

std::optional<ObjectTree::Entry> ObjectTree::entry_at(const ObjectNode& directory, std::uint64_t position) const {
    LARDER_ASSERT(directory.is_directory);
    const std::string_view base = path_of(directory);
    const std::size_t begin = base.empty() ? 0 : base.size() + 1;
    for (std::uint64_t object = std::max(position, directory.object); object < manifest_.object_count(); ++object) {
        const std::string_view path = manifest_.object(object).path;
        if (!is_below(path, base)) return std::nullopt;
        const std::size_t slash = path.find('/', begin);
        const bool is_too_long = std::min(slash, path.size()) - begin > kNameBytesMax;
        if (is_too_long) continue;
        if (slash != std::string_view::npos) {
            // The objects below this directory are followed by those whose next character is above the slash.
            std::string behind(path.substr(0, slash));
            behind += static_cast<char>('/' + 1);
            return Entry{.name = path.substr(begin, slash - begin),
                         .node = {.is_directory = true, .object = object, .depth = directory.depth + 1},
                         .next = lower_bound(behind)};
        }
        const std::string_view name = path.substr(begin);
        const auto node = find(directory, name);
        if (node->is_directory) continue;
        return Entry{.name = name, .node = *node, .next = object + 1};
    }
    return std::nullopt;
}

}  // namespace larder::mount
