#include "tools/cli/run_program.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/process/args.hpp>
#include <boost/process/async.hpp>
#include <boost/process/child.hpp>
#include <boost/process/io.hpp>
#include <boost/process/search_path.hpp>

#include <chrono>
#include <exception>
#include <future>
#include <thread>

namespace larder::cli {

namespace process = boost::process;

namespace {

// A null `errors` leaves stderr to the child.
Result<int> run(const std::vector<std::string>& arguments, const std::string& input, std::string& output,
                std::string* errors, std::optional<std::chrono::seconds> limit) {
    const std::string& program = arguments.front();
    try {
        boost::asio::io_context context;
        std::future<std::string> written;
        std::future<std::string> complained;
        const auto path =
            program.find('/') == std::string::npos ? process::search_path(program) : boost::filesystem::path(program);
        if (path.empty()) return fail(ErrorCode::not_found, program + " is not installed");
        const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
        const auto start = [&](auto&&... more) {
            return process::child(path, process::args(rest),
                                  process::std_in<boost::asio::buffer(input), process::std_out> written, context,
                                  more...);
        };
        process::child child = errors == nullptr ? start() : start(process::std_err > complained);
        if (limit) {
            const auto until = std::chrono::steady_clock::now() + *limit;
            // Ends once the pipes are closed. A grandchild may hold them.
            context.run_until(until);
            // child::wait_for() waits for all of its time.
            while (child.running() && std::chrono::steady_clock::now() < until) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            const bool has_ended = context.stopped() && !child.running();
            if (!has_ended) {
                child.terminate();
                return fail(ErrorCode::unavailable,
                            program + " has not ended within " + std::to_string(limit->count()) + " s, and is killed");
            }
        } else {
            context.run();
            child.wait();
        }
        output = written.get();
        if (errors != nullptr) *errors = complained.get();
        return child.exit_code();
    } catch (const std::exception& error) {
        return fail(ErrorCode::internal, "run " + program + ": " + error.what());
    }
}

}  // namespace

Result<std::string> run_program(const std::vector<std::string>& arguments, const std::string& input) {
    std::string output;
    const auto status = run(arguments, input, output, nullptr, {});
    if (!status) return std::unexpected(status.error());
    if (*status != 0) {
        return fail(ErrorCode::internal, arguments.front() + " ended with status " + std::to_string(*status));
    }
    return output;
}

Result<ProgramOutput> run_program_for_all(const std::vector<std::string>& arguments, const std::string& input,
                                          std::optional<std::chrono::seconds> limit) {
    ProgramOutput ran;
    const auto status = run(arguments, input, ran.output, &ran.errors, limit);
    if (!status) return std::unexpected(status.error());
    ran.status = *status;
    return ran;
}

}  // namespace larder::cli
