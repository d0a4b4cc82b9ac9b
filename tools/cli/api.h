#pragma once

// The daemon's admin API as values: a request gives the JSON of its answer or an Error, and long work is followed to
// its end.

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tools/cli/context.h"
#include "tools/cli/progress.h"

namespace larder::cli {

Result<boost::json::value> call(const Context& context, std::string_view method, const std::string& target,
                                const boost::json::value& body = nullptr);

// A task that has ended: as the daemon tells it, with its error if it failed.
struct EndedTask {
    boost::json::value task;
    std::optional<Error> error;
};

// Follows the task a 202 answer named until it ends, with a progress bar called `label` on stderr. `look`, if given,
// sees the task each time. Ctrl-C cancels the task. An error here is of the way to the daemon.
Result<EndedTask> follow_task(const Context& context, const boost::json::value& accepted, const std::string& label,
                              const std::function<void(const boost::json::object& task, Progress&)>& look = {});

// A remote that does not answer, as /v1/status and tasks name it: "http://host:80, which has not answered for 3.2 s:
// ..."
std::string outage_text(const boost::json::object& outage);

// "/v1/datasets/" + name, encoded.
std::string dataset_target(const std::string& name, std::string_view rest = {});

// Prints `value` on stdout, as one line.
void print_json(const boost::json::value& value);

// A field of an answer, or an empty value when it is missing or of another type: an older daemon knows fewer fields.
std::uint64_t count_at(const boost::json::object& object, std::string_view key);
double number_at(const boost::json::object& object, std::string_view key);
bool flag_at(const boost::json::object& object, std::string_view key);
std::string text_at(const boost::json::object& object, std::string_view key);  // a number is written out
const boost::json::object& object_at(const boost::json::object& object, std::string_view key);
const boost::json::array& array_at(const boost::json::object& object, std::string_view key);
const boost::json::object& as_object(const boost::json::value& value);

}  // namespace larder::cli
