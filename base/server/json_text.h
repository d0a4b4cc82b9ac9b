#pragma once

// JSON values as text, with plain numbers: 0 and 250000, where Boost writes 0E0 and 2.5E5. All JSON that leaves a
// program is written here; a number reads back unchanged. JSON is UTF-8, and names of files need not be: bytes of a
// string that are no UTF-8 are written as "\\xff", which is a backslash and three more characters to whoever reads it.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <string>

namespace larder {

std::string json_text(const boost::json::value& value);
std::string json_text(const boost::json::object& object);
std::string json_text(const boost::json::array& array);

}  // namespace larder
