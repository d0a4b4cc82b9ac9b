#pragma once

// Commands that start a task in the daemon, follow it and report how it ended.

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <string>

#include "base/error.h"
#include "tools/cli/context.h"

namespace larder::cli {

// Prints each of the result's `notes` on a line of its own.
void print_notes(const boost::json::object& result);

// Reports the error of a task and returns the exit code for it. The daemon has answered, so a task that cannot reach
// something ends with kRemoteAway.
int report_task(const Context& context, const Error& error);

// Starts a task, shows its progress as `label`, and prints its result after `past`, such as "added images". Returns the
// exit code; `judge`, if given, chooses the code from the result.
int run_task(const Context& context, const std::string& method, const std::string& target,
             const boost::json::value& body, const std::string& label, const std::string& past,
             int (*judge)(const boost::json::object& result) = nullptr);

}  // namespace larder::cli
