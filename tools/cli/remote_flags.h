#pragma once

// Options of commands that read a dataset: for a store the bucket's endpoint and the identity to use, for a directory
// what to do with symbolic links.

#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>

#include <string>

#include "base/error.h"

namespace larder::cli {

struct RemoteChoice {
    std::string endpoint;
    std::string region;
    std::string profile;
    std::string addressing;
    bool unsigned_access = false;
    bool requester_pays = false;
    bool follow_symlinks = false;

    // Checks the form of the endpoint.
    Result<void> check() const;
    // Returns the object for "remote" in POST /v1/datasets; empty if nothing was chosen.
    boost::json::object json() const;
};

// Adds the options. `whose` names, in help texts, the owner of the environment and files used by default ("the
// daemon's").
void add_remote_options(CLI::App& app, RemoteChoice& choice, const std::string& whose);

}  // namespace larder::cli
