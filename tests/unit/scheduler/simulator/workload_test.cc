#include "scheduler/simulator/workload.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <set>

#include "scheduler/simulator/generate.h"
#include "scheduler/simulator/python_random.h"
#include "scheduler/simulator/tenants.h"
#include "tests/support/temp_directory.h"

namespace larder::scheduler {
namespace {

using testing::HasSubstr;

Trace trace_of(std::uint64_t jobs) {
    return *draw({.jobs_per_hour = 100, .jobs = jobs, .seed = 3});
}

std::string error_of(std::string_view toml) {
    const auto table = parse_workload(toml);
    return table ? "no error" : table.error().message;
}

constexpr std::string_view kOneModel = R"([[dataset]]
name = "d"
size = "1GB"
copies = 0
[[model]]
name = "m"
dataset = "d"
rate = {a = "100MB/s", b = "50MB/s"}
)";

TEST(Workload, DefaultTableServesEveryJobOfTrace) {
    const auto table = parse_workload(default_workload());
    ASSERT_TRUE(table) << table.error().message;
    const auto made = make_workload(trace_of(500), *table, {"v100", "h100"}, {});
    ASSERT_TRUE(made) << made.error().message;
    ASSERT_EQ(made->jobs.size(), 500);
    EXPECT_EQ(made->datasets.size(), 5);
    std::set<std::string> models(made->models.begin(), made->models.end());
    EXPECT_GE(models.size(), 5);
    for (const JobSpec& job : made->jobs) {
        EXPECT_GT(job.total_bytes, 0);
        EXPECT_LT(job.dataset, made->datasets.size());
    }
}

TEST(Workload, DurationsAreOnReferenceGpus) {
    auto table = parse_workload(std::string("reference = \"b\"\n") + std::string(kOneModel));
    ASSERT_TRUE(table) << table.error().message;
    const Trace trace = trace_of(1);
    const auto made = make_workload(trace, *table, {"a"}, {.duration_factor = 2});
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_DOUBLE_EQ(made->jobs[0].total_bytes, trace.jobs[0].duration_s * 2 * 50e6);
    EXPECT_DOUBLE_EQ(made->jobs[0].ideal_bytes_per_second[0], 100e6);
}

TEST(Workload, ElasticJobsScaleLikeTheirModel) {
    const auto table = parse_workload(std::string(kOneModel) + "scaling = [0.7, 1, 1.2]\n");
    ASSERT_TRUE(table) << table.error().message;
    Trace trace = trace_of(2);
    trace.jobs[0].gpus = 2;
    trace.jobs[0].gpus_min = 1;
    trace.jobs[0].gpus_max = 3;
    const auto made = make_workload(trace, *table, {"a"}, {});
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_DOUBLE_EQ(ideal_rate(made->jobs[0], 0, 1), 0.7 * 200e6);
    EXPECT_DOUBLE_EQ(ideal_rate(made->jobs[0], 0, 3), 1.2 * 200e6);
    EXPECT_TRUE(made->jobs[1].scaling.empty()) << "it is not elastic";
    trace.jobs[0].gpus_max = 4;
    EXPECT_THAT(make_workload(trace, *table, {"a"}, {}).error().message,
                HasSubstr("scaling of model m has 3 rates, and must have one for each number"));
    EXPECT_THAT(error_of(std::string(kOneModel) + "scaling = [0, 1]\n"),
                HasSubstr("scaling must be an array of numbers"));
}

TEST(Workload, ModelThatMayShareGpusStatesItsMemory) {
    const std::string sharing = std::string(kOneModel) + "packed = 0.6\n";
    EXPECT_THAT(error_of(sharing), HasSubstr("gpu_memory must be given for a model with packed"));
    EXPECT_THAT(error_of(sharing + "gpu_memory = 1.5\n"), HasSubstr("gpu_memory must be a number from 0 to 1"));
    const auto table = parse_workload(sharing + "gpu_memory = 0.4\n");
    ASSERT_TRUE(table) << table.error().message;
    const auto made = make_workload(trace_of(1), *table, {"a"}, {});
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_DOUBLE_EQ(made->jobs[0].gpu_memory_part, 0.4);
}

TEST(Workload, TenantsAreAsConfigured) {
    const auto table = parse_workload(kOneModel);
    ASSERT_TRUE(table);
    const auto tenants = parse_tenants(
        "[scheduler.tenant.b]\nparent = \"team\"\ngpu_quota = 4\n[scheduler.tenant.team]\nweight = 3\n", "t.toml");
    ASSERT_TRUE(tenants) << tenants.error().message;
    Trace trace = trace_of(2);
    trace.jobs[0].tenant = "a";
    trace.jobs[1].tenant = "b";
    const auto made = make_workload(trace, *table, {"a"}, {.tenants = *tenants});
    ASSERT_TRUE(made) << made.error().message;
    ASSERT_EQ(made->tenants.size(), 3u);
    const Tenant& b = made->tenants[made->jobs[1].tenant];
    EXPECT_EQ(b.name, "b");
    EXPECT_EQ(b.gpu_quota, 4u);
    EXPECT_EQ(made->tenants[b.parent].name, "team");
    EXPECT_DOUBLE_EQ(made->tenants[b.parent].weight, 3);
    EXPECT_EQ(made->tenants[made->jobs[0].tenant].name, "a");
    EXPECT_EQ(made->tenants[made->jobs[0].tenant].gpu_quota, kAllGpus);
}

TEST(Workload, WrongTenantsAreRefusedByLine) {
    const auto refused = [](std::string_view toml) {
        const auto tenants = parse_tenants(toml, "t.toml");
        return tenants ? "no error" : tenants.error().message;
    };
    EXPECT_THAT(refused("[scheduler.tenant.a]\nweight = 0\n"), HasSubstr("t.toml:2"));
    EXPECT_THAT(refused("[scheduler.tenant.a]\nquota = 2\n"), HasSubstr("quota"));
    EXPECT_THAT(refused("[scheduler.tenant.a]\nparent = \"b\"\n"), HasSubstr("there is no tenant \"b\""));
    EXPECT_THAT(refused("[scheduler.tenant.a]\nparent = \"a\"\n"), HasSubstr("the tenant is part of itself"));
    EXPECT_THAT(refused(""), HasSubstr("there is no [scheduler.tenant.NAME]"));
    EXPECT_EQ(parse_tenants("[scheduler.tenant.a]\n", "t.toml")->size(), 1u) << "a tenant needs no settings";
}

TEST(Workload, DrawOfAJobIsIndependentOfOtherJobs) {
    const auto table = parse_workload(default_workload());
    const auto few = make_workload(trace_of(10), *table, {"v100"}, {.seed = 9});
    const auto many = make_workload(trace_of(100), *table, {"v100"}, {.seed = 9});
    const auto other = make_workload(trace_of(100), *table, {"v100"}, {.seed = 10});
    ASSERT_TRUE(few && many && other);
    for (std::size_t j = 0; j < few->jobs.size(); ++j) EXPECT_EQ(few->models[j], many->models[j]);
    EXPECT_NE(many->models, other->models);
}

TEST(Workload, JobsAreSpreadOverDatasetCopies) {
    const auto table = parse_workload(kOneModel);
    ASSERT_TRUE(table) << table.error().message;
    const auto own = make_workload(trace_of(20), *table, {"a"}, {});
    ASSERT_TRUE(own);
    EXPECT_EQ(own->datasets.size(), 20);
    const auto shared = make_workload(trace_of(20), *table, {"a"}, {.dataset_copies = 3});
    ASSERT_TRUE(shared);
    EXPECT_EQ(shared->datasets.size(), 3);
}

TEST(Workload, DrawsDeadlinesForFractionOfJobs) {
    const auto table = parse_workload(kOneModel);
    const Trace trace = trace_of(2000);
    const auto made = make_workload(trace, *table, {"a"}, {.deadlines_part = 0.25});
    ASSERT_TRUE(made);
    std::size_t strict = 0;
    for (std::size_t j = 0; j < made->jobs.size(); ++j) {
        const JobSpec& job = made->jobs[j];
        if (job.service != ServiceClass::strict_deadline) continue;
        ++strict;
        EXPECT_GE(job.deadline_s, job.submit_s + 1.1 * trace.jobs[j].duration_s);
        EXPECT_LE(job.deadline_s, job.submit_s + 3 * trace.jobs[j].duration_s + 60);
    }
    EXPECT_NEAR(static_cast<double>(strict) / 2000, 0.25, 0.04);
}

TEST(Workload, DrawsOpportunisticJobsOnlyWithoutDeadlines) {
    const auto table = parse_workload(kOneModel);
    Trace trace = trace_of(2000);
    trace.jobs[7].opportunistic = true;
    const auto unchanged = make_workload(trace, *table, {"a"}, {});
    ASSERT_TRUE(unchanged);
    EXPECT_TRUE(unchanged->jobs[7].opportunistic);
    const auto made = make_workload(trace, *table, {"a"}, {.deadlines_part = 0.5, .opportunistic_part = 0.5});
    ASSERT_TRUE(made);
    std::size_t opportunistic = 0;
    for (const JobSpec& job : made->jobs) {
        opportunistic += job.opportunistic ? 1 : 0;
        EXPECT_FALSE(job.opportunistic && job.service != ServiceClass::best_effort);
    }
    EXPECT_NEAR(static_cast<double>(opportunistic) / 2000, 0.25, 0.04);
}

TEST(Workload, NamesErrorInTable) {
    EXPECT_THAT(error_of("colour = 1"), HasSubstr("unknown key \"colour\""));
    EXPECT_THAT(error_of("reference = \"a\""), HasSubstr("[[model]] must occur"));
    EXPECT_THAT(error_of("[[model]]\nname = \"m\"\n"), HasSubstr("model[0].rate must be a table of rates"));
    EXPECT_THAT(error_of("[[model]]\nname = \"m\"\nrate = {a = \"1 pint\"}\n"), HasSubstr("model[0].rate.a"));
    EXPECT_THAT(error_of("[[model]]\nname = \"m\"\nrate = {a = \"1MB/s\"}\ndataset = \"x\"\n"), HasSubstr("not \"x\""));
    EXPECT_THAT(error_of("[[model]]\nname = \"m\"\nrate = {a = \"1MB/s\"}\nweigth = 2\n"),
                HasSubstr("model[0].weigth"));
    EXPECT_THAT(error_of("[[model]]\nname = \"m\"\nrate = {a = \"1MB/s\"}\nby_nodes = [2]\n"),
                HasSubstr("above 0, at most 1"));
    EXPECT_THAT(error_of("[[dataset]]\nname = \"d\"\nsize = \"0\"\n[[model]]\n"), HasSubstr("dataset[0].size"));
    EXPECT_THAT(error_of("[[dataset"), HasSubstr("line 1"));
}

TEST(Workload, NamesWhyAJobCannotRun) {
    const auto table = parse_workload(kOneModel);
    Trace trace = trace_of(1);
    const auto unknown_type = make_workload(trace, *table, {"c"}, {});
    ASSERT_FALSE(unknown_type);
    EXPECT_THAT(unknown_type.error().message, HasSubstr("model m has no rate"));
    trace.jobs[0].gpu_type = "z";
    const auto missing_type = make_workload(trace, *table, {"a"}, {});
    ASSERT_FALSE(missing_type);
    EXPECT_THAT(missing_type.error().message, HasSubstr("no GPUs of type \"z\""));
    trace.jobs[0].gpu_type = "";
    trace.jobs[0].duration_s = 0;
    trace.jobs[0].total_steps = 5;
    const auto steps = make_workload(trace, *table, {"a"}, {});
    ASSERT_FALSE(steps);
    EXPECT_THAT(steps.error().message, HasSubstr("bytes per step of model m are unknown"));
}

TEST(Workload, ReadsMeasuredThroughputs) {
    larder::test::TempDirectory directory;
    const std::string path = directory / "t.json";
    std::ofstream(path)
        << R"({"simulation": {"A3C": {"1": {"v100": 8, "k80": 2, "v100_unconsolidated": 7}, "2": {"v100": 15}}}})";
    const auto table = read_throughputs(path, "simulation");
    ASSERT_TRUE(table) << table.error().message;
    Trace trace;
    trace.jobs.push_back({.name = "j", .model = "A3C", .total_steps = 80, .gpus = 1, .gpus_min = 1, .gpus_max = 1});
    const auto made = make_workload(trace, *table, {"k80", "v100"}, {});
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_DOUBLE_EQ(made->jobs[0].total_bytes / made->jobs[0].ideal_bytes_per_second[0], 40);
    EXPECT_DOUBLE_EQ(made->jobs[0].total_bytes / made->jobs[0].ideal_bytes_per_second[1], 10);
    EXPECT_EQ(made->jobs[0].dataset, kNoDataset);
    trace.jobs[0].total_steps = 0;
    trace.jobs[0].duration_s = 10;
    const auto timed = make_workload(trace, *table, {"k80", "v100"}, {});
    ASSERT_TRUE(timed) << timed.error().message;
    EXPECT_DOUBLE_EQ(timed->jobs[0].total_bytes / timed->jobs[0].ideal_bytes_per_second[0], 40)
        << "a duration is a time on v100";
    EXPECT_THAT(read_throughputs(path, "physical").error().message, HasSubstr("no table \"physical\""));
    std::ofstream(path) << "{";
    EXPECT_THAT(read_throughputs(path, "simulation").error().message, HasSubstr("it is not JSON"));
}

TEST(Workload, DurationsAreTimesOnV100WhereItIsSlower) {
    larder::test::TempDirectory directory;
    const std::string path = directory / "t.json";
    std::ofstream(path) << R"({"simulation": {"A3C": {"1": {"v100": 2, "p100": 8}}}})";
    const auto table = read_throughputs(path, "simulation");
    ASSERT_TRUE(table) << table.error().message;
    Trace trace;
    trace.jobs.push_back({.name = "j", .model = "A3C", .duration_s = 80, .gpus = 1, .gpus_min = 1, .gpus_max = 1});
    const auto made = make_workload(trace, *table, {"p100", "v100"}, {});
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_DOUBLE_EQ(made->jobs[0].total_bytes / made->jobs[0].ideal_bytes_per_second[0], 20);
}

TEST(Workload, ReadsThroughputsOfPairs) {
    larder::test::TempDirectory directory;
    const std::string alone = directory / "t.json";
    const std::string pairs = directory / "p.csv";
    std::ofstream(alone) << R"({"simulation": {"A": {"1": {"v100": 8, "k80": 2}}, "B": {"1": {"v100": 10}}}})";
    const auto error_of_pairs = [&](std::string_view rows) {
        std::ofstream(pairs) << "worker_type,job_a,gpus,job_b,tput_a,tput_b\n" << rows;
        auto table = *read_throughputs(alone, "simulation");
        const auto read = read_pair_throughputs(pairs, table);
        return read ? std::string("no error") : read.error().message;
    };
    EXPECT_EQ(error_of_pairs("v100,A,1,B,6,4\n"), "no error");
    EXPECT_THAT(error_of_pairs("v100,A,1,B,6\n"), HasSubstr("line 2: it does not have 6 fields"));
    EXPECT_THAT(error_of_pairs("v100,A,1,C,6,4\n"), HasSubstr("no model \"C\""));
    EXPECT_THAT(error_of_pairs("v100,A,1,B,-6,4\n"), HasSubstr("not a number from 0 on"));
    EXPECT_THAT(error_of_pairs("v100,A,x,B,6,4\n"), HasSubstr("\"x\" is not a number of GPUs"));
    EXPECT_THAT(error_of_pairs("v100,A,2,B,6,4\n"), HasSubstr("no row is of jobs with one GPU"));
    std::ofstream(pairs) << "a,b\n";
    auto table = *read_throughputs(alone, "simulation");
    EXPECT_THAT(read_pair_throughputs(pairs, table).error().message, HasSubstr("the header must be"));
    std::ofstream(pairs)
        << "worker_type,job_a,gpus,job_b,tput_a,tput_b\r\nv100,A,1,B,6,4\r\nv100,A,2,B,1,1\nk80,A,1,A,1,1\n"
        << "t4,A,1,A,2,2\n";
    ASSERT_TRUE(read_pair_throughputs(pairs, table));
    Trace trace;
    for (const char* const model : {"A", "B"}) {
        trace.jobs.push_back(
            {.name = model, .model = model, .total_steps = 80, .gpus = 1, .gpus_min = 1, .gpus_max = 1});
    }
    const auto made = make_workload(trace, table, {"k80", "v100"}, {});
    ASSERT_TRUE(made) << made.error().message;
    const PairParts parts = pair_parts(&made->pair_rates, made->jobs[1], made->jobs[0], 1, 1);
    EXPECT_DOUBLE_EQ(parts.first, 0.4);
    EXPECT_DOUBLE_EQ(parts.second, 0.75);
    EXPECT_DOUBLE_EQ(pair_parts(&made->pair_rates, made->jobs[0], made->jobs[0], 0, 1).second, 0.5);
    EXPECT_FALSE(pair_parts(&made->pair_rates, made->jobs[0], made->jobs[1], 0, 1).may_share())
        << "B has no rate on k80";
}

TEST(Poisson, ArrivalsFollowRateAndGavelDurations) {
    const Trace trace = *draw({.jobs_per_hour = 10, .jobs = 20000, .seed = 1});
    const double hours = trace.jobs.back().submit_s / 3600;
    EXPECT_NEAR(20000 / hours, 10, 0.3);
    std::size_t longer = 0;
    for (const TraceJob& job : trace.jobs) {
        EXPECT_GE(job.duration_s, 60 * 31);
        EXPECT_LE(job.duration_s, 60 * 10000);
        if (job.duration_s > 60000) ++longer;
    }
    EXPECT_NEAR(static_cast<double>(longer) / 20000, 0.2, 0.01);
    EXPECT_FALSE(parse_drawn("poisson:0,10"));
    EXPECT_FALSE(parse_drawn("gauss:5,10"));
    EXPECT_FALSE(parse_drawn("poisson:5"));
    EXPECT_FALSE(parse_drawn("poisson:5,ten"));
}

TEST(ChronusTrace, HasTheShapeOfChronussOwn) {
    larder::test::TempDirectory directory;
    const std::string path = directory / "jobs.csv";
    std::ofstream file(path);
    file << "submit_s,duration_s,gpus\n0,1199,1\n0,259201,1\n";  // too short, too long
    for (int j = 0; j < 5000; ++j) file << 1000 * j << ',' << 1200 + 7 * j << ",2\n";
    file.close();
    const auto trace = draw({.jobs = 5000, .seed = 1, .file = path});
    ASSERT_TRUE(trace) << trace.error().message;
    ASSERT_EQ(trace->jobs.size(), 5000U);
    std::set<std::string> names;
    double soft = 0;
    double strict = 0;
    for (const TraceJob& job : trace->jobs) {
        names.insert(job.name);
        EXPECT_GE(job.duration_s, 1200);
        EXPECT_LT(job.submit_s, 14 * 86400);
        if (job.service == ServiceClass::best_effort) {
            EXPECT_EQ(job.deadline_s, kNever);
            continue;
        }
        const double first_s = job.deadline_s - job.submit_s;
        EXPECT_GE(first_s, std::floor(1.1 * job.duration_s));
        EXPECT_LE(first_s, std::ceil(2 * job.duration_s + 3600));
        EXPECT_EQ(job.values.front().until_s, job.deadline_s);
        const bool is_soft = job.service == ServiceClass::soft_deadline;
        (is_soft ? soft : strict) += 1;
        ASSERT_EQ(job.values.size(), is_soft ? 4U : 1U);
        for (std::size_t v = 1; v < job.values.size(); ++v) {
            EXPECT_GE(job.values[v].until_s - job.values[v - 1].until_s, 20 * 60);
            EXPECT_LT(job.values[v].value, job.values[v - 1].value);
        }
    }
    EXPECT_EQ(names.size(), 5000U) << "a job is drawn at most once";
    EXPECT_NEAR(soft / 5000, 0.6, 0.03);
    EXPECT_NEAR(strict / 5000, 0.3, 0.03);
    const auto other = draw({.jobs = 100, .seed = 2, .file = path});
    const auto again = draw({.jobs = 100, .seed = 2, .file = path});
    ASSERT_TRUE(other && again);
    EXPECT_EQ(other->jobs[7].name, again->jobs[7].name);
    EXPECT_EQ(other->jobs[7].deadline_s, again->jobs[7].deadline_s);
    const auto more = draw({.jobs = 5001, .seed = 1, .file = path});
    ASSERT_FALSE(more);
    EXPECT_THAT(more.error().message, HasSubstr("5000 jobs of 20 minutes to 3 days, fewer than 5001"));
    EXPECT_EQ(parse_drawn("chronus:a,b.csv,60")->file, "a,b.csv");
    EXPECT_FALSE(parse_drawn("chronus:,60"));
    EXPECT_FALSE(parse_drawn("chronus:a.csv"));
}

// The values are those of CPython's random.Random.
TEST(PythonRandom, DrawsTheNumbersOfPython) {
    PythonRandom random(2);
    EXPECT_DOUBLE_EQ(random.uniform(), 0.9560342718892494);
    EXPECT_DOUBLE_EQ(random.uniform(), 0.9478274870593494);
    EXPECT_DOUBLE_EQ(1.5 + 1.5 * random.uniform(), 1.584827051590213);
    EXPECT_EQ(random.below(26), 2u);
    PythonRandom wide(0x123456789aU);
    EXPECT_DOUBLE_EQ(wide.uniform(), 0.5407839131400379);
    for (int i = 0; i < 999; ++i) wide.uniform();
    EXPECT_DOUBLE_EQ(wide.uniform(), 0.24522098229729394);
}

TEST(Gavel, JobsAreThoseOfGavelsSimulator) {
    const Trace trace = *draw({.jobs_per_hour = 6, .jobs = 5000, .seed = 1, .as_gavel = true});
    EXPECT_EQ(trace.jobs[0].submit_s, 0);
    EXPECT_EQ(trace.jobs[0].model, "Recommendation (batch size 512)");
    EXPECT_NEAR(trace.jobs[0].duration_s, 6809.010, 2e-3);
    EXPECT_EQ(trace.jobs[1].model, "LM (batch size 10)");
    EXPECT_NEAR(trace.jobs[1].duration_s, 15365.636, 2e-3);
    EXPECT_NEAR(trace.jobs[1].submit_s, 161.550, 2e-3);
    EXPECT_EQ(trace.jobs[4999].model, "ResNet-50 (batch size 16)");
    EXPECT_NEAR(trace.jobs[4999].duration_s, 35510.955, 2e-3);
    EXPECT_NEAR(trace.jobs[4999].submit_s, 2995716.774, 2e-3);
}

}  // namespace
}  // namespace larder::scheduler
