#include "scheduler/engines/slurm/answer_fields.h"

#include <boost/json.hpp>

#include <algorithm>

namespace larder::scheduler::slurm {
namespace json = boost::json;

const json::array& array_in(const json::object& object, std::string_view key) {
    static const json::array none;
    const json::value* const value = object.if_contains(key);
    return value != nullptr && value->is_array() ? value->get_array() : none;
}

std::string text_in(const json::object& object, std::string_view key) {
    const json::value* const value = object.if_contains(key);
    return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

double number_in(const json::object& object, std::string_view key) {
    const json::value* const value = object.if_contains(key);
    return value != nullptr && value->is_number() ? value->to_number<double>() : 0;
}

std::uint64_t bytes_in(const json::object& object, std::string_view key) {
    return static_cast<std::uint64_t>(std::max(0.0, number_in(object, key)));
}

bool flag_in(const json::object& object, std::string_view key) {
    const json::value* const value = object.if_contains(key);
    return value != nullptr && value->is_bool() && value->get_bool();
}

std::vector<std::string> names_in(const json::object& object, std::string_view key) {
    std::vector<std::string> names;
    names.reserve(array_in(object, key).size());
    for (const json::value& name : array_in(object, key)) {
        if (name.is_string()) names.emplace_back(name.get_string());
    }
    return names;
}

std::vector<const json::object*> objects_in(const json::object& object, std::string_view key) {
    std::vector<const json::object*> objects;
    objects.reserve(array_in(object, key).size());
    for (const json::value& item : array_in(object, key)) {
        if (item.is_object()) objects.push_back(&item.get_object());
    }
    return objects;
}

}  // namespace larder::scheduler::slurm
