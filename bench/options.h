#pragma once

// What every bench is told, and what it gives back.

#include <boost/json/value.hpp>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder::bench {

struct Options {
    bool quick = false;  // under 20 s: counts are exact, speeds are not to be quoted
    bool json = false;
    std::string directory;                   // on the file system to measure; a fresh directory is made in it
    std::string plot;                        // curve, joint: the SVG to draw
    std::vector<std::string> policies;       // joint, reality, simulate, decide: which; empty: all
    std::string trace;                       // simulate: the file
    bool events = false;                     // joint: what happens in mid-run
    std::string python;                      // python: the interpreter that has the larder package
    std::string data;                        // python: a directory of images in class directories
    std::string url;                         // miss: the remote; empty: files made for it
    std::string endpoint;                    // miss: of an s3:// one
    std::optional<double> bytes_per_second;  // miss: what all jobs together are granted
};

// JSON on success; a bench that can draw a table for people prints it itself unless options.json.
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
