#pragma once

// The options of commands that read s3://: where the bucket is, and as whom.

#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>

#include <string>

namespace larder::cli {

struct S3Choice {
    std::string endpoint;
    std::string region;
    std::string profile;
    std::string addressing;
    bool unsigned_access = false;
    bool requester_pays = false;

    // As POST /v1/datasets has it under "remote"; empty when nothing was chosen.
    boost::json::object json() const;
};

// `whose`: environment and files that the rest is taken from, as "the daemon's".
void add_s3_options(CLI::App& app, S3Choice& choice, const std::string& whose);

}  // namespace larder::cli
