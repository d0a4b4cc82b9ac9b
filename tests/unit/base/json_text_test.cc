#include "base/server/json_text.h"

#include <boost/json/parse.hpp>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace larder {
namespace {

namespace json = boost::json;

TEST(JsonText, CommonNumbersHaveNoExponent) {
    EXPECT_EQ(json_text(json::array{0.0, -0.0, 1.0, 2.5e5, 1e8, 0.1, -1234.5, 1e-6, 1700000000.25}),
              "[0,0,1,250000,100000000,0.1,-1234.5,0.000001,1700000000.25]");
    EXPECT_EQ(json_text(json::array{0, -7, std::uint64_t{18'446'744'073'709'551'615u}}), "[0,-7,18446744073709551615]");
}

TEST(JsonText, NumbersOfManyDigitsHaveAnExponent) {
    EXPECT_EQ(json_text(json::array{1e-9, 1e30}), "[1e-09,1e+30]");
    EXPECT_EQ(json::parse(json_text(json::value(1e-9))).to_number<double>(), 1e-9);
}

TEST(JsonText, DoublesSurviveTheRoundTrip) {
    std::mt19937_64 random(7);
    for (int i = 0; i < 100'000; ++i) {
        const double number = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 120) - 120);
        const std::string text = json_text(json::value(number));
        const double back = json::parse(text).to_number<double>();
        // Boost's parser may be off by the last digit.
        EXPECT_NEAR(back / number, 1, 4 * std::numeric_limits<double>::epsilon()) << text;
    }
}

TEST(JsonText, StringsAndNestingMatchBoostsOutput) {
    const json::value value =
        json::parse(R"({"a\"\n":[true,false,null,"ü\u0001",{}],"b":{"c":[],"d":-3},"":"","e":18446744073709551615})");
    EXPECT_EQ(json_text(value), json::serialize(value));
}

TEST(JsonText, BytesThatAreNoUtf8AreEscaped) {
    const std::string text = json_text(json::object{{"na\xffme", "caf\xe9 \xc3\xbc \xed\xa0\x80"}});
    EXPECT_EQ(text, "{\"na\\\\xffme\":\"caf\\\\xe9 \xc3\xbc \\\\xed\\\\xa0\\\\x80\"}");
    EXPECT_EQ(json::parse(text).at("na\\xffme").as_string(), "caf\\xe9 \xc3\xbc \\xed\\xa0\\x80");
}

}  // namespace
}  // namespace larder
