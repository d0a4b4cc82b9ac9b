#include "tools/cli/run_program.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/process/args.hpp>
#include <boost/process/async.hpp>
#include <boost/process/child.hpp>
#include <boost/process/io.hpp>
#include <boost/process/search_path.hpp>

#include <exception>
#include <future>

namespace larder::cli {

namespace process = boost::process;

Result<std::string> run_program(const std::vector<std::string>& arguments, const std::string& input) {
    const std::string& program = arguments.front();
    try {
        boost::asio::io_context context;
        std::future<std::string> output;
        const auto path =
            program.find('/') == std::string::npos ? process::search_path(program) : boost::filesystem::path(program);
        if (path.empty()) return fail(ErrorCode::not_found, program + " is not installed");
        process::child child(path, process::args(std::vector<std::string>(arguments.begin() + 1, arguments.end())),
                             process::std_in<boost::asio::buffer(input), process::std_out> output, context);
        context.run();
        child.wait();
        if (child.exit_code() != 0) {
            return fail(ErrorCode::internal, program + " ended with status " + std::to_string(child.exit_code()));
        }
        return output.get();
    } catch (const std::exception& error) {
        return fail(ErrorCode::internal, "run " + program + ": " + error.what());
    }
}

}  // namespace larder::cli
