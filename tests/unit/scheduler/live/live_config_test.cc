#include "scheduler/live/live_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::scheduler {
namespace {

using ::testing::HasSubstr;

Result<LiveConfig> read(std::string_view toml) {
    const auto keys = live_config_keys();
    const auto text = read_config_text(toml, "file", keys, {});
    if (!text) return std::unexpected(text.error());
    return read_live_config(text->settings, text->empty_tables);
}

std::string refused(std::string_view toml) {
    const auto config = read(toml);
    EXPECT_FALSE(config) << toml;
    return config ? "" : config.error().message;
}

TEST(LiveConfig, NoJobsRunWithoutGpus) {
    EXPECT_FALSE(read("")->runs_jobs());
    EXPECT_THAT(refused("[scheduler]\npolicy = \"las\""), HasSubstr("needs scheduler.gpus"));
}

TEST(LiveConfig, NodesMayBeThoseOfTheAgent) {
    const std::string agent = "[scheduler]\nengine = \"agent\"\nnodes = \"agent\"\n";
    const auto config = read(agent + "gpu_type = \"a100\"");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_TRUE(config->runs_jobs());
    const GpuCluster cluster = gpu_cluster_of(*config, "here");
    EXPECT_TRUE(cluster.is_open && cluster.nodes.empty());
    EXPECT_EQ(cluster.gpu_types, std::vector<std::string>{"a100"});
    EXPECT_THAT(refused(agent + "gpus = 4"), HasSubstr("remove scheduler.gpus"));
    EXPECT_THAT(refused(agent + "[scheduler.node.n1]\ngpus = 4"), HasSubstr("remove scheduler.gpus"));
    EXPECT_THAT(refused("[scheduler]\nnodes = \"agent\""), HasSubstr("needs scheduler.engine"));
    EXPECT_THAT(refused("[scheduler]\nnodes = \"all\""), HasSubstr("\"config\" or \"agent\""));
    EXPECT_FALSE(gpu_cluster_of(*read("[scheduler]\ngpus = 4\nnodes = \"config\""), "here").is_open);
}

TEST(LiveConfig, GpusAloneMakeOneNodeNamedAfterTheMachine) {
    const auto config = read("[scheduler]\ngpus = 8\ngpu_type = \"a100\"");
    ASSERT_TRUE(config) << config.error().message;
    const GpuCluster cluster = gpu_cluster_of(*config, "here");
    ASSERT_EQ(cluster.nodes.size(), 1u);
    EXPECT_EQ(cluster.nodes[0].name, "here");
    EXPECT_EQ(cluster.nodes[0].gpus, 8u);
    EXPECT_EQ(cluster.gpu_types, std::vector<std::string>{"a100"});
}

TEST(LiveConfig, NodesMayHaveTheirOwnTypes) {
    const auto config = read(
        "[scheduler.node.b]\ngpus = 2\n[scheduler.node.a]\ngpus = 4\ngpu_type = \"k80\"\n[scheduler.node.c]\ngpus = "
        "1\ngpu_type = \"k80\"");
    ASSERT_TRUE(config) << config.error().message;
    const GpuCluster cluster = gpu_cluster_of(*config, "here");
    EXPECT_EQ(cluster.gpu_types, (std::vector<std::string>{"k80", "gpu"}));
    ASSERT_EQ(cluster.nodes.size(), 3u);
    EXPECT_EQ(cluster.nodes[1].name, "b");
    EXPECT_EQ(cluster.nodes[1].gpu_type, 1u);
    EXPECT_EQ(cluster.nodes[2].gpu_type, 0u);
}

TEST(LiveConfig, TenantsFormHierarchies) {
    const auto config = read(
        "[scheduler]\ngpus = 8\n[scheduler.tenant.b]\nparent = \"a\"\ngpu_quota = 2\n[scheduler.tenant.a]\nweight = "
        "2.5");
    ASSERT_TRUE(config) << config.error().message;
    const auto tenants = tenants_of(*config).value();
    ASSERT_EQ(tenants.size(), 2u);
    EXPECT_EQ(tenants[0].weight, 2.5);
    EXPECT_EQ(tenants[0].gpu_quota, kAllGpus);
    EXPECT_EQ(tenants[1].parent, 0u);
    EXPECT_EQ(tenants[1].gpu_quota, 2u);
    EXPECT_EQ(tenants_of(LiveConfig{}).value().front().name, "default");
}

TEST(LiveConfig, TenantNeedsNoSettings) {
    const auto config =
        read("[scheduler]\ngpus = 8\n[scheduler.tenant.vision]\nweight = 2\n[scheduler.tenant.language]\n");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_TRUE(config->tenants.contains("language"));
    EXPECT_TRUE(config->tenants.contains("vision"));
}

TEST(LiveConfig, TenantsNameTheirSubmittersAndHighestPriority) {
    const auto config = read(
        "[scheduler]\ngpus = 8\n[scheduler.tenant.a]\nsubmitters = \"root, 1007, ci-vision\"\npriority_max = -3\n"
        "weight_max = 2.5\n"
        "[scheduler.tenant.b]\nsubmitters = \"\"\n[scheduler.tenant.c]\nweight = 2");
    ASSERT_TRUE(config) << config.error().message;
    const auto rules = submit_rules_of(*config);
    ASSERT_EQ(rules.size(), 3u);
    EXPECT_FALSE(rules[0].is_open);
    EXPECT_EQ(rules[0].uids, (std::set<std::uint32_t>{0, 1007}));
    EXPECT_TRUE(rules[0].names.contains("ci-vision"));
    EXPECT_EQ(rules[0].priority_max, -3);
    EXPECT_EQ(rules[0].weight_max, 2.5);
    EXPECT_FALSE(rules[1].is_open) << "nobody but operators";
    EXPECT_TRUE(rules[1].uids.empty() && rules[1].names.empty());
    EXPECT_TRUE(rules[2].is_open);
    EXPECT_FALSE(rules[2].priority_max);
    EXPECT_FALSE(rules[2].weight_max);
    EXPECT_TRUE(submit_rules_of(LiveConfig{}).empty());
}

TEST(LiveConfig, InvalidValueIsNamed) {
    const std::string gpus = "[scheduler]\ngpus = 8\n";
    EXPECT_THAT(refused("[scheduler]\ngpus = 65"), HasSubstr("scheduler.gpus = 65: expected a whole number, 1 to 64"));
    EXPECT_THAT(refused(gpus + "policy = \"luck\""), HasSubstr("fifo-backfill"));
    EXPECT_THAT(refused(gpus + "queues = \"10 h, 1 h\""), HasSubstr("rising times"));
    EXPECT_THAT(refused(gpus + "[scheduler.node.a]\ngpus = 1"), HasSubstr("exclude each other"));
    EXPECT_THAT(refused(gpus + "cells = \"/c\""), HasSubstr("exclude each other"));
    EXPECT_THAT(refused("[scheduler.node.a]\ngpu_type = \"k80\""), HasSubstr("scheduler.node.a.gpus is missing"));
    EXPECT_THAT(refused(gpus + "[scheduler.tenant.a]\nparent = \"b\""), HasSubstr("there is no tenant \"b\""));
    EXPECT_THAT(refused(gpus + "[scheduler.tenant.a]\nparent = \"b\"\n[scheduler.tenant.b]\nparent = \"a\""),
                HasSubstr("the tenant is part of itself"));
    EXPECT_THAT(refused(gpus + "[scheduler.tenant.a]\nweight = 0"), HasSubstr("above 0"));
    EXPECT_THAT(refused(gpus + "[scheduler.tenant.a]\nweight_max = 0"), HasSubstr("above 0"));
    EXPECT_THAT(refused(gpus + "[scheduler.tenant.a]\npriority_max = 0.5"), HasSubstr("a whole number"));
    EXPECT_THAT(refused(gpus + "[scheduler.tenant.a]\nsubmitters = \"a,,b\""), HasSubstr("names such as"));
}

}  // namespace
}  // namespace larder::scheduler
