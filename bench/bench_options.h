#pragma once

// The options every bench gets, and the result it returns.

#include <boost/json/value.hpp>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder::bench {

struct Options {
    bool quick = false;  // under 20 s: counts are exact, speeds are not to be quoted
    bool json = false;
    std::string directory;                   // on the file system to measure; the bench makes a fresh directory in it
    std::string plot;                        // curve, joint: the SVG to draw
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
using Bench = Result<boost::json::value> (*)(const Options& options);

Result<boost::json::value> hits(const Options& options);
Result<boost::json::value> python(const Options& options);
Result<boost::json::value> curve(const Options& options);
Result<boost::json::value> miss(const Options& options);
Result<boost::json::value> peers(const Options& options);
Result<boost::json::value> compression(const Options& options);
Result<boost::json::value> layout(const Options& options);
Result<boost::json::value> start(const Options& options);
Result<boost::json::value> manifest(const Options& options);
Result<boost::json::value> sessions(const Options& options);
Result<boost::json::value> assign(const Options& options);
Result<boost::json::value> joint(const Options& options);
Result<boost::json::value> reality(const Options& options);
Result<boost::json::value> lru_bench(const Options& options);
Result<boost::json::value> simulate(const Options& options);
Result<boost::json::value> decide_bench(const Options& options);

}  // namespace larder::bench
