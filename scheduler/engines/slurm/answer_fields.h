#pragma once

// Fields of the allocator's answers. A missing field of an answer of another version counts as empty.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace larder::scheduler::slurm {

const boost::json::array& array_in(const boost::json::object& object, std::string_view key);
std::string text_in(const boost::json::object& object, std::string_view key);
double number_in(const boost::json::object& object, std::string_view key);
std::uint64_t bytes_in(const boost::json::object& object, std::string_view key);  // or another count
bool flag_in(const boost::json::object& object, std::string_view key);
std::vector<std::string> names_in(const boost::json::object& object, std::string_view key);
// The items of a list that are objects.
std::vector<const boost::json::object*> objects_in(const boost::json::object& object, std::string_view key);

}  // namespace larder::scheduler::slurm
