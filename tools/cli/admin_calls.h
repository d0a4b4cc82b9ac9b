#pragma once

// Calls of the daemon's admin API: a request returns the JSON of its answer or an Error, and long tasks are followed to
// their end.

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "tools/cli/context.h"
#include "tools/cli/progress.h"

namespace larder::cli {

Result<boost::json::value> call(const Context& context, std::string_view method, const std::string& target,
                                const boost::json::value& body = nullptr, const HttpClientOptions& options = {});

// A task that has ended, as the daemon reports it, with the task's error if it failed.
struct EndedTask {
    boost::json::value task;
    std::optional<Error> error;
};

// Follows the task named in a 202 answer until it ends, with a progress bar called `label` on stderr. `on_poll`, if
// given, is called with each answer about the task. Ctrl-C cancels the task. An Error returned here means that the
// daemon could not be reached.
Result<EndedTask> follow_task(const Context& context, const boost::json::value& accepted, const std::string& label,
                              const std::function<void(const boost::json::object& task, ProgressLine&)>& on_poll = {});

// Replaces the API's names of fields in an error's message by the options that the user gave: pairs of {field, option}.
Error with_option_names(Error error,
                        std::initializer_list<std::pair<std::string_view, std::string_view>> option_of_field);

// Describes a remote that does not answer, from /v1/status or a task: "http://host:80, which has not answered for 3.2
// s: ..."
std::string outage_text(const boost::json::object& outage);

// Returns "/v1/datasets/" + name, encoded.
std::string dataset_target(const std::string& name, std::string_view rest = {});

// Prints `value` on stdout, as one line.
void print_json(const boost::json::value& value);

// Return a field of an answer, or an empty value if it is missing or of another type: an older daemon has fewer fields.
std::uint64_t count_at(const boost::json::object& object, std::string_view key);
double number_at(const boost::json::object& object, std::string_view key);
bool flag_at(const boost::json::object& object, std::string_view key);
std::string text_at(const boost::json::object& object, std::string_view key);  // a number is converted to text
const boost::json::object& object_at(const boost::json::object& object, std::string_view key);
const boost::json::array& array_at(const boost::json::object& object, std::string_view key);
const boost::json::object& as_object(const boost::json::value& value);

}  // namespace larder::cli
