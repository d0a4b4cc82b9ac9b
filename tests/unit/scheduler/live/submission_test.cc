#include "scheduler/live/submission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace larder::scheduler {
namespace {

using ::testing::HasSubstr;

struct Refusal {
    std::function<void(Submission&)> change;
    ErrorCode code;
    std::string says;
};

const GpuCluster kCluster{.gpu_types = {"a100", "k80"},
                          .nodes = {{"n1", 0, 8, true}, {"n2", 0, 8, false}, {"n3", 1, 4, true}}};

Result<void> check(const Submission& job) {
    const std::vector<Tenant> tenants{
        {.name = "default"}, {.name = "vision", .gpu_quota = 12}, {.name = "small", .parent = 1, .gpu_quota = 16}};
    const std::vector<DatasetState> datasets{{"images", 1e9}};
    return check_submission(job, {.cluster = kCluster, .tenants = tenants, .datasets = datasets, .now_s = 1000});
}

Submission good() {
    return {.name = "resnet",
            .command = {"train"},
            .directory = "/",
            .gpus = 4,
            .dataset = "images",
            .epochs = 3,
            .deadline_s = 2000,
            .service = ServiceClass::strict_deadline};
}

TEST(Submission, ValidJobIsAccepted) {
    EXPECT_TRUE(check(good()));
    Submission wide = good();
    wide.gpus = 16;
    EXPECT_TRUE(check(wide)) << "a lost node may come back";
    wide.gpus = 40;
    wide.gpus_min = 2;
    EXPECT_TRUE(check(wide)) << "it may run on fewer GPUs";
    Submission pods = good();
    pods.shape.pods = {2, 2};
    pods.gpus_min = 2;
    pods.gpus_max = 8;
    pods.elastic = true;
    EXPECT_TRUE(check(pods));
}

TEST(Submission, OnlyOperatorsSubmitJobsOfSlurm) {
    const std::vector<Tenant> tenants{{.name = "default"}};
    for (const bool is_operator : {false, true}) {
        const SubmissionLimits limits{.cluster = kCluster,
                                      .tenants = tenants,
                                      .datasets = {},
                                      .by = {.uid = 7, .name = {}, .is_operator = is_operator},
                                      .engine_takes_parameters = true};
        const auto checked = [&](const std::string& name, const std::string& parameter) {
            return check_submission(
                {.name = name, .command = {"true"}, .directory = "/", .engine_parameters = {{parameter, "456"}}},
                limits);
        };
        EXPECT_TRUE(checked("resnet", "image"));
        const auto read_by_another =
            check_submission({.command = {"true"}, .directory = "/", .reader_uid = 1001}, limits);
        for (const auto& refused : {checked("slurm-456", "image"), checked("resnet", "slurm_job"), read_by_another}) {
            const auto code = refused ? std::nullopt : std::optional(refused.error().code);
            EXPECT_EQ(code, is_operator ? std::nullopt : std::optional(ErrorCode::permission_denied));
        }
    }
}

TEST(Submission, InvalidJobIsRefusedWithReason) {
    const std::vector<Refusal> refusals{
        {[](Submission& job) { job.gpus = 17; }, ErrorCode::no_space, "asks for 17 GPUs, but the cluster has 16"},
        {[](Submission& job) { job.gpu_type = "k80", job.gpus = 5; }, ErrorCode::no_space, "has 4 of one type"},
        {[](Submission& job) { job.ideal_by_type["k80"] = 1e6, job.gpus = 5; }, ErrorCode::no_space, "has 4"},
        {[](Submission& job) { job.tenant = "vision", job.gpus = 13; }, ErrorCode::no_space, "\"vision\" may have 12"},
        {[](Submission& job) { job.tenant = "small", job.gpus = 13; }, ErrorCode::no_space, "\"vision\" may have 12"},
        {[](Submission& job) { job.tenant = "nobody"; }, ErrorCode::not_found, "known: default, vision, small"},
        {[](Submission& job) { job.dataset = "lost"; }, ErrorCode::not_found, "no node has it; known: images"},
        {[](Submission& job) { job.gpu_type = "h100"; }, ErrorCode::not_found, "known: a100, k80"},
        {[](Submission& job) { job.ideal_by_type["h100"] = 1; }, ErrorCode::not_found, "known: a100, k80"},
        {[](Submission& job) { job.gpus = 0; }, ErrorCode::invalid_argument, "gpus: must be at least 1"},
        {[](Submission& job) { job.gpus_min = 5; }, ErrorCode::invalid_argument, "gpus_min: is above"},
        {[](Submission& job) { job.gpus_max = 3; }, ErrorCode::invalid_argument, "gpus_max: is below"},
        {[](Submission& job) { job.name = "12"; }, ErrorCode::invalid_argument, "could be the number"},
        {[](Submission& job) { job.name = "a b"; }, ErrorCode::invalid_argument, "must have at most 255 letters"},
        {[](Submission& job) { job.command = {}; }, ErrorCode::invalid_argument, "command: is missing"},
        {[](Submission& job) { job.command = {std::string("a\0b", 3)}; }, ErrorCode::invalid_argument, "NUL"},
        {[](Submission& job) { job.directory = "here"; }, ErrorCode::invalid_argument, "absolute"},
        {[](Submission& job) { job.environment["A=B"] = ""; }, ErrorCode::invalid_argument,
         "not the name of a variable"},
        {[](Submission& job) { job.epochs = 0; }, ErrorCode::invalid_argument, "epochs: must be above 0"},
        {[](Submission& job) { job.dataset = ""; }, ErrorCode::invalid_argument, "epochs: counts passes"},
        {[](Submission& job) { job.ideal_by_type[""] = 0; }, ErrorCode::invalid_argument, "must be above 0"},
        {[](Submission& job) { job.weight = 0; }, ErrorCode::invalid_argument, "weight: must be from"},
        {[](Submission& job) { job.restart_s = -1; }, ErrorCode::invalid_argument, "restart_s: must be from"},
        {[](Submission& job) { job.packed_rate = 2; }, ErrorCode::invalid_argument, "packed_rate: must be from"},
        {[](Submission& job) { job.packed_rate = 0.5; }, ErrorCode::invalid_argument,
         "packed_rate: needs gpu_memory_part"},
        {[](Submission& job) { job.gpu_memory_part = 1.5; }, ErrorCode::invalid_argument,
         "gpu_memory_part: must be from"},
        {[](Submission& job) { job.scaling = {1, 2}; }, ErrorCode::invalid_argument, "from gpus_min to gpus_max"},
        {[](Submission& job) { job.rate_by_nodes = {1.5}; }, ErrorCode::invalid_argument, "rate_by_nodes: must have"},
        {[](Submission& job) { job.shape.pods = {3, 2}; }, ErrorCode::invalid_argument, "5 GPUs in all, but gpus is 4"},
        {[](Submission& job) { job.shape.together = "rack", job.gpus_max = 8, job.elastic = true; },
         ErrorCode::invalid_argument, "elastic: the nodes of a job that says where its gang may lie cannot change"},
        {[](Submission& job) { job.shape.pods = {4, 0}; }, ErrorCode::invalid_argument, "at least 1 GPU"},
        {[](Submission& job) { job.shape.pods = {4}, job.gpus_max = 5; }, ErrorCode::invalid_argument, "go whole"},
        {[](Submission& job) { job.shape.pods = {4}, job.gpus_min = 2; }, ErrorCode::invalid_argument, "go whole"},
        {[](Submission& job) { job.shape.pods = {3, 1}, job.gpus_max = 8; }, ErrorCode::invalid_argument,
         "fixed number"},
        {[](Submission& job) { job.shape.pods = {4}, job.gpus_max = 257 * 4; }, ErrorCode::invalid_argument,
         "more than 256 pods"},
        {[](Submission& job) {
             job.shape.pods = {4}, job.packed_rate = 0.5;
             job.gpu_memory_part = 0.5;
         },
         ErrorCode::invalid_argument, "shares no GPUs"},
        {[](Submission& job) {
             job.shape.cell = "a", job.opportunistic = true, job.deadline_s.reset(),
             job.service = ServiceClass::best_effort;
         },
         ErrorCode::invalid_argument, "no claim to a pinned cell"},
        {[](Submission& job) { job.elastic = true; }, ErrorCode::invalid_argument, "needs a range of GPUs"},
        {[](Submission& job) { job.grace_s = -1; }, ErrorCode::invalid_argument, "grace_s"},
        {[](Submission& job) { job.opportunistic = true; }, ErrorCode::invalid_argument, "it cannot have a deadline"},
        {[](Submission& job) { job.opportunistic = true, job.preemptible = false; }, ErrorCode::invalid_argument,
         "must be preemptible"},
        {[](Submission& job) { job.deadline_s = 999; }, ErrorCode::invalid_argument, "is over already"},
        {[](Submission& job) { job.epochs.reset(); }, ErrorCode::invalid_argument, "give epochs, or use soft"},
        {[](Submission& job) { job.deadline_s.reset(); }, ErrorCode::invalid_argument, "but none is given"},
        {[](Submission& job) { job.service = ServiceClass::best_effort; }, ErrorCode::invalid_argument,
         "strict or soft"},
    };
    for (const Refusal& refusal : refusals) {
        Submission job = good();
        refusal.change(job);
        const auto refused = check(job);
        ASSERT_FALSE(refused) << refusal.says;
        EXPECT_EQ(refused.error().code, refusal.code) << refused.error().message;
        EXPECT_THAT(refused.error().message, HasSubstr(refusal.says));
    }
}

// vision is open to users 1 and 2, its part small to user 2 and the token "ci", default to everyone.
class SubmissionRules : public ::testing::Test {
protected:
    const std::vector<Tenant> tenants{{.name = "default"}, {.name = "small", .parent = 2}, {.name = "vision"}};
    std::vector<SubmitRule> rules{{.uids = {}, .names = {}, .priority_max = 0},
                                  {.is_open = false, .uids = {2}, .names = {"ci"}, .priority_max = 9},
                                  {.is_open = false, .uids = {1, 2}, .names = {}, .priority_max = 5}};

    static Submitter user(std::uint32_t uid) { return {.uid = uid, .name = {}, .is_operator = false}; }
    static Submitter token(const std::string& name) { return {.uid = {}, .name = name, .is_operator = false}; }
    SubmissionLimits limits(const Submitter& by) const {
        return {.cluster = kCluster, .tenants = tenants, .datasets = {}, .by = by, .rules = rules};
    }
    Result<void> check(const Submitter& by, const std::string& tenant, std::int32_t priority = 0) const {
        return check_submission({.command = {"train"}, .directory = "/", .tenant = tenant, .priority = priority},
                                limits(by));
    }
    std::string refusal(const Submitter& by, const std::string& tenant, std::int32_t priority = 0) const {
        const auto checked = check(by, tenant, priority);
        if (checked) return "";
        EXPECT_EQ(checked.error().code, ErrorCode::permission_denied);
        return checked.error().message;
    }
};

TEST_F(SubmissionRules, NobodySubmitsForATenantOfOthers) {
    EXPECT_TRUE(check(user(1), "vision"));
    EXPECT_THAT(refusal(user(1), "small"), HasSubstr("you may not submit for tenant \"small\"; for: default, vision"));
    EXPECT_TRUE(check(user(2), "small"));
    EXPECT_THAT(refusal(user(3), "vision"), HasSubstr("vision"));
    EXPECT_TRUE(check(user(3), "default"));
    EXPECT_TRUE(check(token("ci"), "small"));
    EXPECT_THAT(refusal(token("ci"), "vision"), HasSubstr("vision"));
    EXPECT_THAT(refusal(token(""), "small"), HasSubstr("small"));
    Submitter by = user(4);
    by.is_operator = true;
    EXPECT_TRUE(check(by, "small"));
    EXPECT_EQ(check(user(1), "nobody").error().code, ErrorCode::not_found);
}

TEST_F(SubmissionRules, TenantThatIsLeftOutIsOneOfTheSubmitters) {
    const auto chosen = [&](const Submitter& by) {
        return tenant_of({.command = {"train"}, .directory = "/"}, limits(by));
    };
    EXPECT_EQ(chosen(user(2)).value(), "default");
    rules[0] = {.is_open = false, .uids = {}, .names = {}, .priority_max = {}};
    EXPECT_EQ(chosen(user(1)).value(), "vision") << "the only one of this user";
    EXPECT_EQ(chosen(user(2)).error().code, ErrorCode::invalid_argument) << "there are two";
    EXPECT_EQ(chosen(user(3)).error().code, ErrorCode::permission_denied) << "there is none";
}

TEST_F(SubmissionRules, PriorityIsLimitedByTheTenantAndThoseAboveIt) {
    EXPECT_TRUE(check(user(2), "vision", 5));
    EXPECT_THAT(refusal(user(2), "vision", 6), HasSubstr("priority 6 is above 5, the highest for tenant \"vision\""));
    EXPECT_THAT(refusal(user(2), "small", 7), HasSubstr("\"vision\"")) << "small is a part of vision";
    EXPECT_THAT(refusal(user(2), "default", 1), HasSubstr("above 0"));
    EXPECT_TRUE(check(user(2), "default", -7));
    Submitter by = user(2);
    by.is_operator = true;
    EXPECT_TRUE(check(by, "default", 100));
}

TEST_F(SubmissionRules, WeightAbove1NeedsAnOperatorOrATenantThatAllowsIt) {
    const auto says = [&](const Submitter& by, const std::string& tenant, double weight) -> std::string {
        const auto checked =
            check_submission({.command = {"train"}, .directory = "/", .tenant = tenant, .weight = weight}, limits(by));
        if (checked) return "";
        EXPECT_EQ(checked.error().code, ErrorCode::permission_denied);
        return checked.error().message;
    };
    EXPECT_EQ(says(user(2), "default", 1), "");
    EXPECT_THAT(says(user(2), "default", 1.5), HasSubstr("weight 1.5 is above 1, the highest for tenant \"default\""));
    rules[2].weight_max = 4;
    EXPECT_EQ(says(user(2), "vision", 4), "");
    EXPECT_EQ(says(user(2), "small", 4), "") << "small is a part of vision";
    EXPECT_THAT(says(user(2), "vision", 5), HasSubstr("above 4"));
    rules[1].weight_max = 9;
    EXPECT_THAT(says(user(2), "small", 5), HasSubstr("above 4")) << "vision's limit holds, too";
    rules[1].weight_max = 2;
    EXPECT_THAT(says(user(2), "small", 3), HasSubstr("above 2"));
    Submitter by = user(2);
    by.is_operator = true;
    EXPECT_EQ(says(by, "default", 100), "");
    rules.clear();
    EXPECT_THAT(says(user(2), "default", 1.5), HasSubstr("above 1"));
}

TEST(Submission, JobThatWouldTakeTooMuchOfTheQueueIsRefused) {
    Submission job = good();
    job.environment["A"] = std::string(kRecordBytesMax - record_bytes(good()) - 100, 'x');
    EXPECT_TRUE(check(job));
    job.environment["A"] += std::string(100, '"');  // takes two bytes a letter on record
    ASSERT_FALSE(check(job));
    EXPECT_THAT(check(job).error().message, HasSubstr("of at most 256.00 KiB"));
}

}  // namespace
}  // namespace larder::scheduler
