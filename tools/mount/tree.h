#pragma once

// The directories and files of a mounted dataset, by inode number. A raw dataset has its files at their paths. In every
// other format each shard is a directory with a file for each field of each sample: in a WebDataset the members of the
// tar, by their names; else files named by the sample's index in the dataset, "000000012.image".
//
// Threads: all functions may be called from any thread. They may wait for samples, whose bytes tell the names and
// sizes of fields, and fail as SamplePool::get does. Raw trees never wait.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tools/mount/sample_pool.h"

namespace larder::mount {

inline constexpr std::uint64_t kRootInode = 1;

struct Node {
    std::uint64_t inode = 0;
    bool is_directory = false;
    std::uint64_t size_bytes = 0;
    std::int64_t modified_ns = 0;  // since 1970
};

struct Entry {
    std::string name;
    Node node;
    std::uint64_t next = 0;  // the position behind this entry
};

// The bytes of a file: a field of a sample.
struct FileContent {
    std::uint64_t sample = 0;
    std::uint32_t field = 0;
};

class Tree {
public:
    // The tree that fits the dataset's format. `pool` must outlive it.
    static std::unique_ptr<Tree> make(SamplePool& pool);
    virtual ~Tree() = default;

    // The node with this number; nothing if there is none. Kernels ask only for numbers that they were given.
    virtual Result<std::optional<Node>> node(std::uint64_t inode) = 0;
    virtual Result<std::optional<Node>> find(std::uint64_t directory, std::string_view name) = 0;
    // The first entry of the directory at or behind the position; nothing at the end. A listing begins at 0.
    virtual Result<std::optional<Entry>> entry_at(std::uint64_t directory, std::uint64_t position) = 0;
    // Returns nothing if the number is not a file's.
    virtual std::optional<FileContent> content(std::uint64_t inode) const = 0;
};

std::unique_ptr<Tree> make_raw_tree(const protocol::Manifest& manifest);
std::unique_ptr<Tree> make_shard_tree(SamplePool& pool);

}  // namespace larder::mount
