#include "allocator/name_numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

namespace larder::allocator {
namespace {

TEST(NameNumbers, NamesInUseHaveDifferentNumbersThatStay) {
    std::mt19937_64 random(5);
    NameNumbers numbers;
    struct Expected {
        std::uint32_t number = 0;
        int uses = 0;
    };
    std::map<std::string, Expected> in_use;
    std::size_t most_in_use = 0;
    for (int step = 0; step < 20'000; ++step) {
        const std::string name = "dataset-" + std::to_string(random() % 30);
        const auto known = in_use.find(name);
        ASSERT_EQ(numbers.find(name), known == in_use.end() ? NameNumbers::kNoNumber : known->second.number);
        if (random() % 2 == 0) {
            const std::uint32_t number = numbers.take(name);
            ASSERT_LT(number, numbers.end());
            if (known != in_use.end()) {
                ASSERT_EQ(number, known->second.number) << name;
            }
            in_use[name].number = number;
            ++in_use[name].uses;
        } else if (known != in_use.end()) {
            numbers.release(known->second.number);
            if (--known->second.uses == 0) in_use.erase(known);
        }
        std::set<std::uint32_t> different;
        for (const auto& [_, one] : in_use) different.insert(one.number);
        ASSERT_EQ(different.size(), in_use.size());
        most_in_use = std::max(most_in_use, in_use.size());
    }
    EXPECT_EQ(numbers.end(), most_in_use) << "numbers are used again";
}

}  // namespace
}  // namespace larder::allocator
