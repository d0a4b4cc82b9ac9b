// Placement does not depend on the order of the entries in the file of cells.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "scheduler/cells/cell_config_toml.h"
#include "scheduler/cells/cells.h"
#include "tests/support/property_cases.h"
#include "tests/unit/scheduler/cells/random_cells.h"

namespace larder::scheduler::tests {
namespace {

// Places on the cells of one file. Names take the place of numbers, which may differ between files.
class NamedCells {
public:
    explicit NamedCells(const std::string& file) {
        auto config = parse_cell_config(file, "cells.toml");
        EXPECT_TRUE(config) << config.error().message;
        cluster_ = cluster_of(*config);
        const std::vector<std::string> tenants{"t0", "t1", "t2", "t3"};
        cells_ = std::move(*Cells::create(*config, cluster_, tenants));
    }

    // Returns the GPUs by node, then the evicted jobs.
    std::string place(JobId job, std::uint32_t tenant, std::uint32_t gpus, const std::string& type, bool opportunistic,
                      const std::vector<std::string>& near) {
        const auto at = std::ranges::find(cluster_.gpu_types, type);
        if (at == cluster_.gpu_types.end()) return "no such type";
        std::vector<std::uint32_t> nodes;
        for (const std::string& name : near) nodes.push_back(node(name));
        const auto placed = cells_->place({.job = job,
                                           .tenant = tenant,
                                           .gpus = gpus,
                                           .gpu_type = static_cast<std::uint32_t>(at - cluster_.gpu_types.begin()),
                                           .opportunistic = opportunistic,
                                           .near = nodes,
                                           .rate_far = near.empty() ? 1 : 0.3});
        if (!placed) return "";
        std::map<std::string, std::uint64_t> shares;
        for (const NodeGpus& share : placed->placement) shares[cluster_.nodes[share.node].name] = share.gpus;
        std::string text;
        for (const auto& [name, bits] : shares) text += name + ":" + std::to_string(bits) + " ";
        for (const JobId id : std::set(placed->evicted.begin(), placed->evicted.end())) {
            text += "-" + std::to_string(id) + " ";
        }
        evicted = placed->evicted;
        return text;
    }
    void release(JobId job) { cells_->release(job); }
    void set_usable(const std::string& name, bool usable) { cells_->set_usable(node(name), usable); }

    std::vector<JobId> evicted;  // by the last job placed

private:
    std::uint32_t node(const std::string& name) const {
        return static_cast<std::uint32_t>(std::ranges::find(cluster_.nodes, name, &GpuNode::name) -
                                          cluster_.nodes.begin());
    }

    GpuCluster cluster_;
    std::unique_ptr<Cells> cells_;
};

TEST(CellsFileOrder, PlacementIsTheSameForEveryOrder) {
    constexpr std::uint32_t kJobsPlaced = 120;
    std::uint32_t placed = 0;
    std::uint32_t differently_ordered = 0;
    for (std::uint64_t seed = 0; seed < test::property_cases(200); ++seed) {
        Dice dice(seed);
        const CellConfig config = random_config(dice);
        const std::string first_file = shuffled_file(config, dice);
        const std::string second_file = shuffled_file(config, dice);
        differently_ordered += first_file != second_file ? 1 : 0;
        NamedCells first(first_file);
        NamedCells second(second_file);
        std::vector<std::string> nodes;
        for (const HierarchyConfig& hierarchy : config.hierarchies) {
            nodes.insert(nodes.end(), hierarchy.nodes.begin(), hierarchy.nodes.end());
        }
        const auto any_node = [&] { return nodes[dice.between(0, static_cast<std::uint32_t>(nodes.size()) - 1)]; };
        std::vector<JobId> jobs;
        for (JobId job = 0; job < kJobsPlaced; ++job) {
            const std::uint32_t operation = dice.between(1, 100);
            if (operation <= 65) {
                const std::uint32_t tenant = dice.between(0, 3);
                const std::uint32_t gpus = dice.between(1, dice.chance(60) ? 4 : 24);
                const std::string type = dice.chance(70) ? "a" : "b";
                const bool opportunistic = dice.chance(25);
                std::vector<std::string> near;
                if (dice.chance(20)) near.push_back(any_node());
                const std::string here = first.place(job, tenant, gpus, type, opportunistic, near);
                ASSERT_EQ(here, second.place(job, tenant, gpus, type, opportunistic, near))
                    << "seed " << seed << ", operation " << job << "\n"
                    << first_file << "\n"
                    << second_file;
                if (here.empty() || here == "no such type") continue;
                ++placed;
                for (const JobId id : first.evicted) std::erase(jobs, id);
                jobs.push_back(job);
            } else if (operation <= 90 && !jobs.empty()) {
                const auto at =
                    static_cast<std::ptrdiff_t>(dice.between(0, static_cast<std::uint32_t>(jobs.size()) - 1));
                first.release(jobs[static_cast<std::size_t>(at)]);
                second.release(jobs[static_cast<std::size_t>(at)]);
                jobs.erase(jobs.begin() + at);
            } else {
                const std::string node = any_node();
                const bool usable = dice.chance(60);
                first.set_usable(node, usable);
                second.set_usable(node, usable);
            }
        }
    }
    EXPECT_GT(placed, test::property_cases(2000));
    EXPECT_GT(differently_ordered, test::property_cases(100));
}

}  // namespace
}  // namespace larder::scheduler::tests
