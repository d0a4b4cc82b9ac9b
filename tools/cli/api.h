#pragma once

// The daemon's admin API as values: a request gives the JSON of its answer or an Error, and long work is followed to
// its end.

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tools/cli/context.h"

namespace larder::cli {

Result<boost::json::value> call(const Context& context, std::string_view method, const std::string& target,
                                const boost::json::value& body = nullptr);

// Follows the task a 202 answer named until it ends, with a progress bar called `label` on stderr. Gives the finished
// task, or the Error it failed with. Ctrl-C cancels the task.
Result<boost::json::value> follow_task(const Context& context, const boost::json::value& accepted,
                                       const std::string& label);

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
