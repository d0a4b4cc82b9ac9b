#pragma once

// Gives names small numbers, so that a table by number can stand for a map by name. A name keeps its number as long as
// somebody uses it; then another name may get the number.

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"

namespace larder::allocator {

class NameNumbers {
public:
    static constexpr std::uint32_t kNoNumber = std::numeric_limits<std::uint32_t>::max();

    // Returns the name's number, and counts one more use of it.
    std::uint32_t take(std::string_view name) {
        if (const auto found = numbers_.find(name); found != numbers_.end()) {
            ++named_[found->second].uses;
            return found->second;
        }
        const bool is_new = free_.empty();
        const auto number = is_new ? static_cast<std::uint32_t>(named_.size()) : free_.back();
        if (is_new) {
            named_.emplace_back();
        } else {
            free_.pop_back();
        }
        named_[number] = {.name = std::string(name), .uses = 1};
        numbers_.emplace(name, number);
        return number;
    }
    void release(std::uint32_t number) {
        LARDER_ASSERT(number < named_.size() && named_[number].uses > 0);
        if (--named_[number].uses > 0) return;
        numbers_.erase(named_[number].name);
        free_.push_back(number);
    }
    // Returns kNoNumber if nobody uses the name.
    std::uint32_t find(std::string_view name) const {
        const auto found = numbers_.find(name);
        return found == numbers_.end() ? kNoNumber : found->second;
    }
    // All numbers are below this.
    std::size_t end() const { return named_.size(); }

private:
    struct Named {
        std::string name;
        std::size_t uses = 0;
    };
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>{}(name); }
    };

    std::vector<Named> named_;  // by number
    std::vector<std::uint32_t> free_;
    boost::unordered_flat_map<std::string, std::uint32_t, Hash, std::equal_to<>> numbers_;
};

}  // namespace larder::allocator
