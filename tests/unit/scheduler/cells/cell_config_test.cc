#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/cells/cell_config_toml.h"
#include "scheduler/cells/cells.h"
#include "tests/unit/scheduler/cells/random_cells.h"

namespace larder::scheduler::tests {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::string_view kGood = R"([[hierarchy]]
name = "v100"
gpu_type = "V100"
levels = [{ name = "node", of = 8 }, { name = "rack", of = 2 }]
node = "node"
nodes = ["a[0-3]"]

[[virtual_cluster]]
name = "vision"
cells = [{ hierarchy = "v100", level = "rack", count = 1 }]
pinned = [{ hierarchy = "v100", level = "gpu", node = "a3", gpu = 2 }]
)";

std::string config_with(std::string_view old, std::string_view replacement) {
    std::string text(kGood);
    const std::size_t at = text.find(old);
    EXPECT_NE(at, std::string::npos);
    return text.replace(at, old.size(), replacement);
}

std::string error_of(std::string_view toml) {
    const auto read = parse_cell_config(toml, "cells.toml");
    EXPECT_FALSE(read);
    return read ? "" : read.error().message;
}

TEST(CellConfig, ValidFileIsParsed) {
    const auto read = parse_cell_config(kGood, "cells.toml");
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_THAT(read->hierarchies[0].nodes, ElementsAre("a0", "a1", "a2", "a3"));
    EXPECT_EQ(read->hierarchies[0].node_level, 1U);
    EXPECT_EQ(read->virtual_clusters[0].cells[0].level, 2U);
    EXPECT_EQ(read->virtual_clusters[0].pinned[0].index, 26U);
    EXPECT_EQ(gpus_owned(*read, 0, "V100"), 17U);
    const GpuCluster cluster = cluster_of(*read);
    EXPECT_EQ(cluster.nodes.size(), 4U);
    EXPECT_EQ(cluster.nodes[3].gpus, 8U);
}

TEST(CellConfig, ExampleIsValid) {
    const auto read = load_cell_config(LARDER_SOURCE_DIRECTORY "/tools/larder-cells.example.toml");
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(read->virtual_clusters[0].name, "speech");
    EXPECT_EQ(gpus_owned(*read, 0, "V100"), 3U * 8 + 2 * 4);
    EXPECT_EQ(gpus_owned(*read, 1, "V100"), 2U * 32 + 4);
    const std::vector<std::string> tenants{"vision", "speech"};
    EXPECT_TRUE(Cells::create(*read, cluster_of(*read), tenants));
}

TEST(CellConfig, OverCommittedLevelIsNamedWithShortage) {
    EXPECT_EQ(error_of(config_with("level = \"rack\", count = 1", "level = \"rack\", count = 2")),
              "cells.toml: level \"rack\" of hierarchy \"v100\" is over-committed: virtual clusters own 2 of its cells "
              "(\"vision\" 2), which is 1 more than the 1 available");
    EXPECT_THAT(error_of(config_with("level = \"rack\", count = 1", "level = \"node\", count = 5")),
                AllOf(HasSubstr("level \"node\""), HasSubstr("own 5 of its cells"),
                      HasSubstr("which is 2 more than the 3 available")));
    EXPECT_THAT(
        error_of(config_with("count = 1 }]", "count = 1 }, { hierarchy = \"v100\", level = \"gpu\", count = 16 }]")),
        AllOf(HasSubstr("level \"gpu\""), HasSubstr("own 32 of its cells"),
              HasSubstr("which is 1 more than the 31 available")));
}

TEST(CellConfig, MistakesAreNamedByLineKeyAndValue) {
    EXPECT_EQ(error_of(config_with("of = 8", "of = 0")),
              "cells.toml:4: hierarchy \"v100\" levels[0].of = 0: expected a whole number, 1 to 1000000");
    EXPECT_EQ(error_of(config_with("of = 8", "of = \"8\"")),
              "cells.toml:4: hierarchy \"v100\" levels[0].of = \"8\": expected a whole number, 1 to 1000000");
    EXPECT_EQ(error_of(config_with("node = \"node\"", "node = \"gpu\"")),
              "cells.toml:5: hierarchy \"v100\" node = \"gpu\": expected one of \"node\", \"rack\"");
    EXPECT_EQ(error_of(config_with("node = \"node\"", "nod = \"node\"")),
              "cells.toml:5: hierarchy \"v100\": unknown key \"nod\": expected one of \"name\", \"gpu_type\", "
              "\"levels\", \"node\", \"nodes\", \"first_gpu\"");
    EXPECT_EQ(error_of(config_with("gpu_type = \"V100\"\n", "")),
              "cells.toml:1: hierarchy \"v100\" gpu_type is missing: expected a name, in text");
    EXPECT_EQ(error_of(config_with("\"a[0-3]\"", "\"a[3-0]\"")),
              "cells.toml:6: hierarchy \"v100\" nodes = \"a[3-0]\": expected a list of names such as \"gpu17\" or "
              "\"gpu[00-15]\"");
    EXPECT_EQ(error_of(config_with("\"a[0-3]\"", "\"a[0-2]\"")),
              "cells.toml: hierarchy \"v100\": nodes has 3 names: expected a multiple of 2, the nodes of one \"rack\"");
    EXPECT_EQ(error_of(config_with("\"a[0-3]\"", "\"a[0-2]\", \"a1\"")),
              "cells.toml: hierarchy \"v100\": node \"a1\" appears twice");
    EXPECT_EQ(error_of(config_with("level = \"rack\"", "level = \"pod\"")),
              "cells.toml:10: virtual_cluster \"vision\" cells[0].level = \"pod\": expected one of \"gpu\", \"node\", "
              "\"rack\"");
    EXPECT_EQ(
        error_of(config_with("{ hierarchy = \"v100\", level = \"rack\"", "{ hierarchy = \"h100\", level = \"rack\"")),
        "cells.toml:10: virtual_cluster \"vision\" cells[0].hierarchy = \"h100\": expected the name of a "
        "hierarchy: \"v100\"");
    EXPECT_EQ(error_of(config_with("count = 1", "count = -1")),
              "cells.toml:10: virtual_cluster \"vision\" cells[0].count = -1: expected a whole number, 1 to 1000000");
    EXPECT_EQ(error_of(config_with("node = \"a3\"", "node = \"b3\"")),
              "cells.toml:11: virtual_cluster \"vision\" pinned[0].node = \"b3\": expected the name of a node of "
              "hierarchy \"v100\"");
    EXPECT_EQ(error_of(config_with("gpu = 2", "gpu = 8")),
              "cells.toml:11: virtual_cluster \"vision\" pinned[0].gpu = 8: expected a whole number, 0 to 7");
    EXPECT_THAT(error_of(config_with("level = \"gpu\", node", "level = \"node\", node")),
                HasSubstr("gpu is given, but level \"node\" is not below the node"));
    EXPECT_THAT(
        error_of(config_with("gpu = 2 }", "gpu = 2 }, { hierarchy = \"v100\", level = \"node\", node = \"a3\" }")),
        HasSubstr("lies within another pinned cell, or contains one"));
    EXPECT_THAT(error_of(config_with("name = \"vision\"", "name = 7")),
                HasSubstr("virtual_cluster.name = 7: expected"));
    EXPECT_THAT(error_of(config_with("[[virtual_cluster]]", "[virtual_cluster]")), HasSubstr("a list of tables"));
    EXPECT_THAT(error_of(config_with("of = 8", "of = 128")), HasSubstr("a node has 128 GPUs: expected at most 64"));
    EXPECT_THAT(error_of("x ="), HasSubstr("cells.toml:1: "));
    EXPECT_EQ(error_of(""), "cells.toml: hierarchy is missing: expected at least one [[hierarchy]]");
}

std::string with_second_type(std::string_view gpu_type, std::string_view more) {
    return std::string(kGood) + R"(
[[hierarchy]]
name = "t4"
gpu_type = ")" +
           std::string(gpu_type) + R"("
levels = [{ name = "node", of = 2 }]
node = "node"
nodes = ["a0", "b0"]
)" + std::string(more) +
           R"(
[[virtual_cluster]]
name = "tests"
pinned = [{ hierarchy = "t4", level = "gpu", node = "a0", gpu = 9 }]
)";
}

TEST(CellConfig, MachineMayHaveTwoGpuTypes) {
    const auto read = parse_cell_config(with_second_type("T4", "first_gpu = 8"), "cells.toml");
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(read->hierarchies[0].name, "t4");
    EXPECT_EQ(read->virtual_clusters[0].pinned[0].index, 1U) << "GPU 9 of the machine";
    const GpuCluster cluster = cluster_of(*read);
    ASSERT_EQ(cluster.nodes.size(), 6U);
    EXPECT_EQ(cluster.nodes[0].name, "a0");
    EXPECT_EQ(cluster.nodes[0].first_gpu, 8U);
    EXPECT_EQ(cluster.nodes[2].name, "a0");
    EXPECT_EQ(cluster.nodes[2].first_gpu, 0U);
    EXPECT_THAT(error_of(with_second_type("T4", "first_gpu = 7")), HasSubstr("both have the node \"a0\" with GPU 7"));
    EXPECT_THAT(error_of(with_second_type("T4", "")),
                HasSubstr("hierarchies \"v100\" and \"t4\" both have the node \"a0\" with GPU 0: set first_gpu"));
    EXPECT_THAT(error_of(with_second_type("T4", "first_gpu = 10")),
                HasSubstr("gpu = 9: expected a whole number, 10 to 11"));
    EXPECT_THAT(error_of(with_second_type("V100", "first_gpu = 8")), HasSubstr("with GPUs of type \"V100\""));
    EXPECT_THAT(error_of(with_second_type("T4", "first_gpu = 63")), HasSubstr("first_gpu = 63: expected at most 62"));
}

TEST(CellConfig, PinnedCellsMayHaveNames) {
    const auto read = parse_cell_config(config_with("gpu = 2 }", "gpu = 2, name = \"fast\" }"), "cells.toml");
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->virtual_clusters[0].pinned[0].name, "fast");
    const std::string pin = "{ name = \"a\", hierarchy = \"v100\", level = \"gpu\", node = \"a3\", gpu = ";
    EXPECT_THAT(error_of(config_with("pinned = [{ hierarchy = \"v100\", level = \"gpu\", node = \"a3\", gpu = 2 }]",
                                     "pinned = [" + pin + "2 }, " + pin + "3 }]")),
                HasSubstr("two pinned cells of the name \"a\""));
}

TEST(CellConfig, MissingFileIsNamed) {
    const auto read = load_cell_config("/nowhere/cells.toml");
    ASSERT_FALSE(read);
    EXPECT_THAT(read.error().message, HasSubstr("/nowhere/cells.toml"));
}

TEST(CellConfig, RangesExpandToNames) {
    EXPECT_THAT(expand_names("n[08-11]x"), ElementsAre("n08x", "n09x", "n10x", "n11x"));
    EXPECT_THAT(expand_names("n7"), ElementsAre("n7"));
    for (const auto* wrong : {"", "n[1]", "n[1-", "n1-2]", "n[2-1]", "n[a-b]", "n[1-2][1-2]", "n[0-1000000]", "n[[1-2]",
                              "n]1-2[", "n[1-9999999999999]", "n[-1-2]"}) {
        EXPECT_THAT(expand_names(wrong), IsEmpty()) << wrong;
    }
}

// Every mangled file is either refused with a message, or it gives cells on which jobs can be placed.
TEST(CellConfig, MangledFilesAreReadOrRefused) {
    Dice dice(7);
    std::uint32_t refused = 0;
    std::uint32_t read = 0;
    for (std::uint32_t i = 0; i < 20'000; ++i) {
        std::string text(kGood);
        for (std::uint32_t changes = dice.between(1, 3); changes > 0; --changes) {
            const std::size_t at = dice.between(0, static_cast<std::uint32_t>(text.size()) - 1);
            const std::size_t size = dice.between(0, 6);
            constexpr std::string_view kCharacters = "0123456789[]{}=\",-\n ax";
            switch (dice.between(0, 3)) {
                case 0: text.erase(at, size); break;
                case 1: text.insert(at, 1, kCharacters[dice.between(0, kCharacters.size() - 1)]); break;
                case 2: text[at] = kCharacters[dice.between(0, kCharacters.size() - 1)]; break;
                default: text.insert(at, text.substr(dice.between(0, 200), size)); break;
            }
            if (text.empty()) text = " ";
        }
        const auto config = parse_cell_config(text, "mangled.toml");
        if (!config) {
            ++refused;
            ASSERT_THAT(config.error().message, testing::StartsWith("mangled.toml:")) << text;
            continue;
        }
        ++read;
        const std::vector<std::string> tenants{"vision"};
        const auto cells = Cells::create(*config, cluster_of(*config), tenants);
        ASSERT_TRUE(cells) << text;
        if (config->virtual_clusters.empty() || config->virtual_clusters[0].name != "vision") continue;
        const std::uint32_t owned = gpus_owned(*config, 0, config->hierarchies[0].gpu_type);
        if (owned == 0) continue;
        const PlaceRequest all{.job = 1, .tenant = 0, .gpus = owned, .gpu_type = 0, .near = {}};
        ASSERT_TRUE((*cells)->place(all)) << text;
    }
    EXPECT_GT(refused, 1000U);
    EXPECT_GT(read, 500U);
}

TEST(CellConfig, PrivateClusterHasExactlyTheOwnedGpus) {
    Dice dice(11);
    for (std::uint32_t i = 0; i < 500; ++i) {
        const CellConfig config = random_config(dice);
        for (std::uint32_t c = 0; c < config.virtual_clusters.size(); ++c) {
            const CellConfig alone = private_config(config, c);
            if (alone.hierarchies.empty()) continue;
            const auto good = check_cells(alone, "private");
            ASSERT_TRUE(good) << good.error().message;
            for (const std::string type : {"a", "b"}) {
                std::uint32_t gpus = 0;
                for (const HierarchyConfig& hierarchy : alone.hierarchies) {
                    gpus += hierarchy.gpu_type == type ? hierarchy.gpus() : 0;
                }
                ASSERT_EQ(gpus, gpus_owned(config, c, type));
                ASSERT_EQ(gpus, gpus_owned(alone, 0, type));
            }
        }
    }
}

}  // namespace
}  // namespace larder::scheduler::tests
