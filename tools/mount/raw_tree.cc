#include "tools/mount/object_tree.h"
#include "tools/mount/tree.h"

namespace larder::mount {
namespace {

class RawTree : public Tree {
public:
    explicit RawTree(const protocol::Manifest& manifest) : manifest_(manifest), objects_(manifest) {}

    Result<std::optional<Node>> node(std::uint64_t inode) override {
        const auto found = node_of(inode, manifest_);
        return found ? std::optional(describe(*found)) : std::nullopt;
    }

    Result<std::optional<Node>> find(std::uint64_t directory, std::string_view name) override {
        const auto parent = node_of(directory, manifest_);
        if (!parent || !parent->is_directory) return std::nullopt;
        const auto found = objects_.find(*parent, name);
        return found ? std::optional(describe(*found)) : std::nullopt;
    }

    Result<std::optional<Entry>> entry_at(std::uint64_t directory, std::uint64_t position) override {
        const auto parent = node_of(directory, manifest_);
        if (!parent || !parent->is_directory) return std::nullopt;
        const auto entry = objects_.entry_at(*parent, position);
        if (!entry) return std::nullopt;
        return Entry{.name = std::string(entry->name), .node = describe(entry->node), .next = entry->next};
    }

    std::optional<FileContent> content(std::uint64_t inode) const override {
        const auto found = node_of(inode, manifest_);
        if (!found || found->is_directory) return std::nullopt;
        return FileContent{.sample = found->object};  // object i of a raw dataset is also sample i
    }

private:
    Node describe(const ObjectNode& node) const {
        if (node.is_directory) {
            return {.inode = inode_of(node), .is_directory = true, .modified_ns = manifest_.header().created_unix_ns};
        }
        const protocol::Object object = manifest_.object(node.object);
        return {.inode = inode_of(node), .size_bytes = object.size_bytes, .modified_ns = object.mtime_ns};
    }

    const protocol::Manifest& manifest_;
    const ObjectTree objects_;
};

}  // namespace

std::unique_ptr<Tree> make_raw_tree(const protocol::Manifest& manifest) {
    return std::make_unique<RawTree>(manifest);
}

std::unique_ptr<Tree> Tree::make(SamplePool& pool) {
    const protocol::Manifest& manifest = pool.manifest();
    return manifest.header().format == protocol::Format::raw ? make_raw_tree(manifest) : make_shard_tree(pool);
}

}  // namespace larder::mount
