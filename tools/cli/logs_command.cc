#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "base/server/percent_encoding.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

constexpr std::chrono::milliseconds kPoll{200};

struct LogsOptions {
    std::string job;
    bool follow = false;
};

// A job's state, as the allocator answered.
struct SubmittedJobState {
    std::string title;
    std::string state;
    std::uint64_t attempt = 0;
    bool ended = false;
};

class Logs {
public:
    Logs(const Context& context, const LogsOptions& options)
        : context_(context), follow_(options.follow), target_("/v1/queue/" + percent_encode(options.job)) {}

    Result<void> show() {
        for (;;) {
            // The state is read before the output, so that no output of a job that has ended is missed.
            const auto state = read_state();
            if (!state) return std::unexpected(state.error());
            report_start(*state);
            if (state->attempt > 0) {
                if (auto printed = print_new(state->attempt); !printed) return printed;
            }
            if (!follow_ || state->ended) return {};
            std::this_thread::sleep_for(kPoll);
        }
    }

private:
    Result<SubmittedJobState> read_state() const {
        const auto answer = call_allocator(context_, "GET", target_);
        if (!answer) return std::unexpected(answer.error());
        const json::object& job = as_object(*answer);
        return SubmittedJobState{.title = text_at(job, "id") + " (" + text_at(job, "name") + ")",
                                 .state = text_at(job, "state"),
                                 .attempt = count_at(job, "attempt"),
                                 .ended = job.contains("ended_unix_s")};
    }

    // Says on stderr that the job waits or starts again: stdout carries only the job's output.
    void report_start(const SubmittedJobState& state) {
        if (state.attempt == 0 && !is_first_state_reported_) {
            std::fprintf(stderr, "larder: job %s has not started: it is %s\n", state.title.c_str(),
                         state.state.c_str());
        }
        if (attempt_ > 0 && state.attempt != attempt_) {
            std::fprintf(stderr, "larder: job %s starts again: attempt %llu\n", state.title.c_str(),
                         static_cast<unsigned long long>(state.attempt));
        }
        is_first_state_reported_ = true;
        if (state.attempt != attempt_) offset_ = 0;
        attempt_ = state.attempt;
    }

    Result<void> print_new(std::uint64_t attempt) {
        for (;;) {
            const auto part = get_from_allocator(context_, target_ + "/output?attempt=" + std::to_string(attempt) +
                                                               "&offset=" + std::to_string(offset_));
            if (!part) return std::unexpected(part.error());
            if (part->empty()) return {};
            offset_ += part->size();
            std::fwrite(part->data(), 1, part->size(), stdout);
            std::fflush(stdout);
        }
    }

    const Context& context_;
    bool follow_;
    std::string target_;
    bool is_first_state_reported_ = false;
    std::uint64_t attempt_ = 0;
    std::uint64_t offset_ = 0;
};

}  // namespace

void add_logs_command(CLI::App& job, Context& context) {
    auto options = std::make_shared<LogsOptions>();
    CLI::App* command =
        job.add_subcommand("logs", "Print what a submitted job has written to stdout and stderr in its latest attempt");
    command->add_option("JOB", options->job, "The job's number or name, as submitted")->required();
    command->add_flag("-f,--follow", options->follow, "Continue until the job has ended, through all further attempts");
    command->callback([&context, options] {
        context.command = [&context, options] {
            const auto shown = Logs(context, *options).show();
            return shown ? static_cast<int>(kDone) : report(context, shown.error());
        };
    });
}

}  // namespace larder::cli
