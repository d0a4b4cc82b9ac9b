// ObjectTree shows the paths of a manifest's objects as directories and files.

#include "tools/mount/object_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cache/dataset/manifest_writer.h"
#include "tests/support/temp_directory.h"

namespace larder::mount {
namespace {

using protocol::Manifest;
using ::testing::ElementsAre;

class ObjectTreeTest : public ::testing::Test {
protected:
    const Manifest& write(const std::vector<std::string>& paths) {
        cache::DatasetContent content;
        for (const std::string& path : paths) content.add_object(path, 10, 1, protocol::kNoLabel);
        const std::string file = directory_ / "manifest";
        const auto summary = cache::write_manifest(content, {.url = "file:///data", .format = protocol::Format::raw},
                                                   {.path = file, .dataset_id = 1});
        EXPECT_TRUE(summary) << summary.error().message;
        auto manifest = Manifest::open(file);
        EXPECT_TRUE(manifest && manifest->check());
        manifest_ = std::move(*manifest);
        return manifest_;
    }

    static std::vector<std::string> names(const ObjectTree& tree, const ObjectNode& directory) {
        std::vector<std::string> names;
        for (std::uint64_t at = 0;;) {
            const auto entry = tree.entry_at(directory, at);
            if (!entry) return names;
            EXPECT_GT(entry->next, at);
            EXPECT_EQ(tree.find(directory, entry->name), entry->node);
            names.push_back(std::string(entry->name) + (entry->node.is_directory ? "/" : ""));
            at = entry->next;
        }
    }

    test::TempDirectory directory_;
    Manifest manifest_;
};

constexpr ObjectNode kRoot{.is_directory = true};

TEST_F(ObjectTreeTest, ListsFilesAndDirectories) {
    const ObjectTree tree(write({"a", "b/c", "b/d/e", "b/d/f", "b-c", "b.d/g", "h"}));
    EXPECT_THAT(names(tree, kRoot), ElementsAre("a", "b-c", "b.d/", "b/", "h"));
    const auto b = tree.find(kRoot, "b");
    ASSERT_TRUE(b);
    EXPECT_EQ(tree.path_of(*b), "b");
    EXPECT_THAT(names(tree, *b), ElementsAre("c", "d/"));
    const auto d = tree.find(*b, "d");
    ASSERT_TRUE(d);
    EXPECT_EQ(tree.path_of(*d), "b/d");
    EXPECT_THAT(names(tree, *d), ElementsAre("e", "f"));
    const auto f = tree.find(*d, "f");
    ASSERT_TRUE(f);
    EXPECT_FALSE(f->is_directory);
    EXPECT_EQ(tree.path_of(*f), "b/d/f");
}

TEST_F(ObjectTreeTest, FindsOnlyWholeNames) {
    const ObjectTree tree(write({"ab/cd", "ef"}));
    for (const char* name : {"a", "abc", "ab/cd", "e", "", "/", "ab/"}) EXPECT_FALSE(tree.find(kRoot, name)) << name;
}

TEST_F(ObjectTreeTest, DirectoryHidesObjectOfItsPath) {
    const ObjectTree tree(write({"a", "a-", "a/b", "c"}));
    EXPECT_THAT(names(tree, kRoot), ElementsAre("a-", "a/", "c"));
}

TEST_F(ObjectTreeTest, InodeNumbersNameNodes) {
    const Manifest& manifest = write({"a/b/c", "a/d", "e"});
    const ObjectTree tree(manifest);
    const ObjectNode a = *tree.find(kRoot, "a");
    const ObjectNode b = *tree.find(a, "b");
    const ObjectNode c = *tree.find(b, "c");
    std::set<std::uint64_t> inodes;
    for (const ObjectNode& node : {kRoot, a, b, c, *tree.find(a, "d"), *tree.find(kRoot, "e")}) {
        EXPECT_TRUE(inodes.insert(inode_of(node)).second);
        EXPECT_EQ(node_of(inode_of(node), manifest), node);
    }
    EXPECT_EQ(inode_of(kRoot), 1u);
    // Numbers that no node has: object 3, the third directory of "a/b/c", flags that are unknown.
    for (const std::uint64_t inode :
         {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{3} << 40, (std::uint64_t{1} << 62) | 3,
          (std::uint64_t{1} << 62) | (std::uint64_t{1} << 40), std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
        EXPECT_FALSE(node_of(inode, manifest)) << inode;
    }
}

// Compares the tree with one of nested maps.
TEST_F(ObjectTreeTest, RandomTreesAreListedWhole) {
    std::mt19937_64 draw(5);
    for (int round = 0; round < 50; ++round) {
        std::set<std::string> paths;
        const auto name = [&] { return std::string(1, "-./ab0"[draw() % 6]) + std::string(1, "xy"[draw() % 2]); };
        for (int i = 0; i < 60; ++i) {
            std::string path = name();
            for (std::uint64_t depth = draw() % 4; depth > 0; --depth) path += "/" + name();
            if (protocol::is_plain_path(path)) paths.insert(path);
        }
        const ObjectTree tree(write({paths.begin(), paths.end()}));
        std::set<std::string> expected;
        for (const std::string& path : paths) {
            const auto below = paths.lower_bound(path + "/");
            if (below == paths.end() || !below->starts_with(path + "/")) expected.insert(path);
        }
        std::set<std::string> found;
        const auto walk = [&](const auto& self, const ObjectNode& directory) -> void {
            for (auto entry = tree.entry_at(directory, 0); entry; entry = tree.entry_at(directory, entry->next)) {
                if (entry->node.is_directory) {
                    self(self, entry->node);
                } else {
                    EXPECT_TRUE(found.insert(std::string(tree.path_of(entry->node))).second);
                }
            }
        };
        walk(walk, kRoot);
        EXPECT_EQ(found, expected);
    }
}

}  // namespace
}  // namespace larder::mount
