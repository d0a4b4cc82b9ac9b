#include "scheduler/simulator/trace.h"

#include <gmock/gmock.h>

#include <sstream>

namespace larder::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Result<Trace> parse(const std::string& text, const TraceOptions& options = {}) {
    std::istringstream stream(text);
    return parse_trace(stream, options);
}

std::string trace_error_of(const std::string& text) {
    const auto parsed = parse(text);
    return parsed ? "no error" : parsed.error().message;
}

constexpr const char* kHeader = "submit_s,duration_s,gpus,vc\n";

TEST(Trace, ReadsPhillyColumns) {
    const auto trace = parse(std::string(kHeader) + "37841,2240194,8,7f04ca\n40000,60,1,ed69ec\n");
    ASSERT_TRUE(trace) << trace.error().message;
    EXPECT_EQ(trace->format, "larder");
    ASSERT_EQ(trace->jobs.size(), 2);
    EXPECT_EQ(trace->jobs[0].submit_s, 37841);
    EXPECT_EQ(trace->jobs[0].duration_s, 2240194);
    EXPECT_EQ(trace->jobs[0].gpus, 8);
    EXPECT_EQ(trace->jobs[0].gpus_min, 8);
    EXPECT_EQ(trace->jobs[0].tenant, "7f04ca");
}

TEST(Trace, ReadsAllLarderColumns) {
    const auto trace = parse(
        "name,submit_s,duration_s,gpus,tenant,model,gpu_type,gpus_min,gpus_max,priority,deadline_s,service,"
        "preemptible,elastic\n"
        "a,10,100,4,x,bert,h100,2,8,-3,500,strict,0,1\n"
        "b,0,100,4,,,,,,,,best_effort,1,0\r\n");
    ASSERT_TRUE(trace) << trace.error().message;
    const TraceJob& job = trace->jobs[1];  // unsorted rows are sorted by time
    EXPECT_EQ(job.name, "a");
    EXPECT_EQ(job.model, "bert");
    EXPECT_EQ(job.gpu_type, "h100");
    EXPECT_EQ(job.gpus_min, 2);
    EXPECT_EQ(job.gpus_max, 8);
    EXPECT_EQ(job.priority, -3);
    EXPECT_EQ(job.deadline_s, 500);
    EXPECT_EQ(job.service, ServiceClass::strict_deadline);
    EXPECT_FALSE(job.preemptible);
    EXPECT_TRUE(job.elastic);
    EXPECT_FALSE(trace->jobs[0].elastic);
    EXPECT_EQ(trace->jobs[0].gpus_max, 4);
    EXPECT_EQ(trace->jobs[0].deadline_s, kNever);
}

TEST(Trace, DeadlineIsStrictByDefault) {
    const auto without = parse("submit_s,duration_s,gpus,deadline_s\n0,100,1,500\n0,100,1,\n");
    ASSERT_TRUE(without) << without.error().message;
    EXPECT_EQ(without->jobs[0].deadline_s, 500);
    EXPECT_EQ(without->jobs[0].service, ServiceClass::strict_deadline);
    EXPECT_EQ(without->jobs[1].service, ServiceClass::best_effort);
    const auto empty = parse("submit_s,duration_s,gpus,deadline_s,service\n0,100,1,500,\n0,100,1,500,soft\n");
    ASSERT_TRUE(empty) << empty.error().message;
    EXPECT_EQ(empty->jobs[0].service, ServiceClass::strict_deadline);
    EXPECT_EQ(empty->jobs[1].service, ServiceClass::soft_deadline);
    EXPECT_THAT(trace_error_of("submit_s,duration_s,gpus,deadline_s,service\n0,100,1,,strict\n0,100,1,9,best_effort\n"),
                HasSubstr("line 3: deadline_s: a best_effort job has no deadline"));
}

TEST(Trace, ReadsTiresias) {
    const auto trace =
        parse("job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n7,8,30,133,vgg11,147,23\n");
    ASSERT_TRUE(trace) << trace.error().message;
    EXPECT_EQ(trace->format, "tiresias");
    EXPECT_EQ(trace->jobs[0].name, "7");
    EXPECT_EQ(trace->jobs[0].gpus, 8);
    EXPECT_EQ(trace->jobs[0].submit_s, 30);
    EXPECT_EQ(trace->jobs[0].duration_s, 147);
    EXPECT_EQ(trace->jobs[0].model, "vgg11");
}

TEST(Trace, ReadsChronusDeadlinesRelativeToSubmission) {
    const auto trace = parse(
        "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,"
        "best_effort,job_type\n"
        "0,vc_1,4,1000,6910,resnet101,211,8,282,10,0,strict\n"
        "1,vc_1,4,1000,6910,resnet101,211,8,300-600,10-5,0,soft\n"
        "2,vc_1,4,1000,6910,resnet101,211,8,282,10,1,best\n");
    ASSERT_TRUE(trace) << trace.error().message;
    EXPECT_EQ(trace->format, "chronus");
    EXPECT_EQ(trace->jobs[0].deadline_s, 1282);
    EXPECT_EQ(trace->jobs[0].service, ServiceClass::strict_deadline);
    EXPECT_EQ(trace->jobs[1].deadline_s, 1300);
    EXPECT_EQ(trace->jobs[1].service, ServiceClass::soft_deadline);
    EXPECT_EQ(trace->jobs[2].deadline_s, kNever);
    EXPECT_THAT(trace->jobs[0].values, ElementsAre(ValueUntil{.until_s = 1282, .value = 10}));
    EXPECT_THAT(trace->jobs[1].values,
                ElementsAre(ValueUntil{.until_s = 1300, .value = 10}, ValueUntil{.until_s = 1600, .value = 5}));
    EXPECT_THAT(trace->jobs[2].values, IsEmpty());
}

TEST(Trace, NamesLineOfInvalidValuesOverTime) {
    const std::string header = "num_gpu,submit_time,duration,expect_time_list,expect_value_list,job_type\n";
    EXPECT_THAT(trace_error_of(header + "1,0,9,10-20,10,soft\n"), HasSubstr("line 2: expect_value_list: not as many"));
    EXPECT_THAT(trace_error_of(header + "1,0,9,20-10,10-5,soft\n"), HasSubstr("times must rise"));
    EXPECT_THAT(trace_error_of(header + "1,0,9,10-20,5-10,soft\n"), HasSubstr("values must fall"));
    EXPECT_THAT(trace_error_of(header + "1,0,9,10-x,5-1,soft\n"), HasSubstr("expect_time_list: \"x\" is not a number"));
    EXPECT_THAT(trace_error_of(header + "1,0,9,,10,strict\n"), HasSubstr("values without times"));
}

TEST(Trace, ReadsAllThreeGavelFormats) {
    const auto six = parse("A3C\tpython3 main.py\t--max-steps\t6948\t12.5\t1\n");
    ASSERT_TRUE(six) << six.error().message;
    EXPECT_EQ(six->format, "gavel");
    EXPECT_EQ(six->jobs[0].model, "A3C");
    EXPECT_EQ(six->jobs[0].total_steps, 6948);
    EXPECT_EQ(six->jobs[0].submit_s, 12.5);
    const auto seven = parse("Transformer (batch size 128)\tcd %s\t-step\t1\t51427\t9357.0\t8\n");
    ASSERT_TRUE(seven) << seven.error().message;
    EXPECT_EQ(seven->jobs[0].gpus, 8);
    EXPECT_EQ(seven->jobs[0].total_steps, 51427);
    const auto ten = parse("A3C\tpython3\tdir\t--max-steps\t0\t700\t2\t3.0\t-1\t99\n");
    ASSERT_TRUE(ten) << ten.error().message;
    EXPECT_EQ(ten->jobs[0].gpus, 2);
    EXPECT_EQ(ten->jobs[0].weight, 3);
    EXPECT_EQ(ten->jobs[0].submit_s, 99);
    EXPECT_THAT(trace_error_of("A3C\tpython3\t1\n"), HasSubstr("line 1: 3 columns"));
}

TEST(Trace, NamesLineOfInvalidValue) {
    const std::string header = kHeader;
    EXPECT_THAT(trace_error_of(header + "0,10,1,a\n0,10,0,a\n"), HasSubstr("line 3: a job with 0 GPUs"));
    EXPECT_THAT(trace_error_of(header + "0,-10,1,a\n"), HasSubstr("line 2: a negative duration"));
    EXPECT_THAT(trace_error_of(header + "-1,10,1,a\n"), HasSubstr("line 2: submitted at a negative time"));
    EXPECT_THAT(trace_error_of(header + "0,0,1,a\n"), HasSubstr("line 2: a job without work"));
    EXPECT_THAT(trace_error_of(header + "0,10,1\n"), HasSubstr("line 2: 3 cells, but the header has 4"));
    EXPECT_THAT(trace_error_of(header + "0,ten,1,a\n"), HasSubstr("line 2: duration_s: \"ten\" is not a number"));
    EXPECT_THAT(trace_error_of(header + "0,10,1.5,a\n"), HasSubstr("line 2: gpus: \"1.5\" is not a whole number"));
    EXPECT_THAT(trace_error_of(header + "0,10,-8,a\n"), HasSubstr("line 2: gpus: \"-8\" is not a whole number"));
    EXPECT_THAT(trace_error_of(header + "0,nan,1,a\n"), HasSubstr("is not a number"));
    EXPECT_THAT(trace_error_of("submit_s,duration_s,gpus,colour\n"),
                HasSubstr("line 1: unknown column \"colour\"; known: submit_s"));
    EXPECT_THAT(trace_error_of("submit_s,gpus\n1,1\n"), HasSubstr("line 1: the header has no column duration_s"));
    EXPECT_THAT(trace_error_of(kHeader), HasSubstr("no jobs"));
}

TEST(Trace, OpportunisticJobsHaveNoDeadlineAndArePreemptible) {
    const std::string header = "submit_s,duration_s,gpus,opportunistic,service,deadline_s,preemptible\n";
    const auto trace = parse(header + "0,10,1,1,,,\n1,10,1,0,strict,50,\n");
    ASSERT_TRUE(trace) << trace.error().message;
    EXPECT_TRUE(trace->jobs[0].opportunistic);
    EXPECT_FALSE(trace->jobs[1].opportunistic);
    EXPECT_THAT(trace_error_of(header + "1,10,1,1,strict,50,\n"), HasSubstr("line 2: an opportunistic job with a"));
    EXPECT_THAT(trace_error_of(header + "1,10,1,1,,,0\n"), HasSubstr("line 2: an opportunistic job that may not"));
}

TEST(Trace, SortsByTimeAndKeepsOrderOfEqualTimes) {
    const auto trace = parse(std::string(kHeader) + "50,10,1,d\n7,10,1,a\n20,10,1,b\n20,10,2,c\n");
    ASSERT_TRUE(trace) << trace.error().message;
    std::string order;
    for (const TraceJob& job : trace->jobs) order += job.tenant;
    EXPECT_EQ(order, "abcd");
    // Errors still name lines of the file.
    EXPECT_THAT(trace_error_of(std::string(kHeader) + "50,10,1,d\n7,10,0,a\n"), HasSubstr("line 3: a job with 0 GPUs"));
}

TEST(Trace, UnknownColumnIsAnErrorEvenWhenBadRowsAreSkipped) {
    const auto own = parse("# a comment\nsubmit_s,duration_s,gpus,colour\n0,10,1,red\n", {.skip_bad = true});
    ASSERT_FALSE(own);
    EXPECT_THAT(own.error().message, HasSubstr("line 2: unknown column \"colour\""));
    const auto tiresias = parse("job_id,num_gpu,submit_time,duration,colour\n", {.skip_bad = true});
    ASSERT_FALSE(tiresias);
    EXPECT_THAT(tiresias.error().message, HasSubstr("line 1: unknown column \"colour\"; known: job_id"));
}

TEST(Trace, SkipsAndCountsBadRowsIfSkipBadIsSet) {
    const auto trace = parse(std::string(kHeader) + "0,10,0,a\n5,10,1,a\n6,-1,1,a\n", {.skip_bad = true});
    ASSERT_TRUE(trace) << trace.error().message;
    EXPECT_EQ(trace->jobs.size(), 1);
    EXPECT_EQ(trace->skipped, 2);
    EXPECT_THAT(trace->first_skipped, HasSubstr("line 2"));
}

TEST(Trace, TakesEarliestJobsUpToLimit) {
    const auto trace = parse(std::string(kHeader) + "9,10,1,late\n1,10,1,early\n", {.jobs_max = 1});
    ASSERT_TRUE(trace);
    ASSERT_EQ(trace->jobs.size(), 1);
    EXPECT_EQ(trace->jobs[0].tenant, "early");
}

TEST(Trace, NamesMissingFile) {
    const auto trace = read_trace("/nonexistent/trace.csv", {});
    ASSERT_FALSE(trace);
    EXPECT_THAT(trace.error().message, HasSubstr("/nonexistent/trace.csv"));
}

}  // namespace
}  // namespace larder::scheduler
