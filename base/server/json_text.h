#pragma once

// JSON values as text, with plain numbers: 0 and 250000, where Boost writes 0E0 and 2.5E5. All JSON that leaves a
// program is written here; a number reads back unchanged.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <string>

namespace larder {

std::string json_text(const boost::json::value& value);
std::string json_text(const boost::json::object& object);
std::string json_text(const boost::json::array& array);

}  // namespace larder
