#pragma once

// The options every bench gets, and the result it returns.

#include <boost/json/value.hpp>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder::bench {

struct BenchOptions {
    bool quick = false;  // under 20 s: counts are exact, speeds are not to be quoted
    bool json = false;
    std::string directory;                   // on the file system to measure; the bench makes a fresh directory in it
    std::string plot;                        // curve, joint, shared: the SVG to draw
    std::vector<std::string> policies;       // joint, reality, simulate, decide: those to run; empty: all
    std::string trace;                       // simulate: its file; empty: jobs drawn at random
    bool events = false;                     // joint: true to measure events in mid-run
    std::string python;                      // python: the interpreter that has the larder package
    std::string data;                        // python: a directory of images in class directories
    std::string url;                         // miss: the remote; empty: files made for it
    std::string endpoint;                    // miss: the endpoint for s3://
    std::optional<double> bytes_per_second;  // miss: the grant of all jobs together
};

// Returns JSON on success. A bench with a table for people prints it itself unless options.json.
using Bench = Result<boost::json::value> (*)(const BenchOptions& options);

Result<boost::json::value> hits(const BenchOptions& options);
Result<boost::json::value> python(const BenchOptions& options);
Result<boost::json::value> dlio(const BenchOptions& options);
Result<boost::json::value> curve(const BenchOptions& options);
Result<boost::json::value> shared(const BenchOptions& options);
Result<boost::json::value> miss(const BenchOptions& options);
Result<boost::json::value> peers(const BenchOptions& options);
Result<boost::json::value> compression(const BenchOptions& options);
Result<boost::json::value> layout(const BenchOptions& options);
Result<boost::json::value> start(const BenchOptions& options);
Result<boost::json::value> manifest(const BenchOptions& options);
Result<boost::json::value> sessions(const BenchOptions& options);
Result<boost::json::value> assign(const BenchOptions& options);
Result<boost::json::value> joint(const BenchOptions& options);
Result<boost::json::value> reality(const BenchOptions& options);
Result<boost::json::value> lru_bench(const BenchOptions& options);
Result<boost::json::value> simulate(const BenchOptions& options);
Result<boost::json::value> decide_bench(const BenchOptions& options);
Result<boost::json::value> optimum(const BenchOptions& options);
Result<boost::json::value> reports(const BenchOptions& options);

}  // namespace larder::bench
