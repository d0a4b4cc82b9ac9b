#include "base/server/json_reader.h"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder {
namespace {

using testing::HasSubstr;

boost::json::object object_of(std::string_view text) {
    return parse_json_object(text, "text").value();
}

TEST(JsonReader, ReadsValuesOfEveryType) {
    const auto object =
        object_of(R"({"s": "a", "n": 18446744073709551615, "i": 5, "d": 1.5, "b": true, "o": {"x": 1}})");
    JsonReader reader(object, "body");
    EXPECT_EQ(reader.string("s"), "a");
    EXPECT_EQ(reader.unsigned_integer("n"), ~std::uint64_t{0});
    EXPECT_EQ(reader.unsigned_integer("i"), 5u);
    EXPECT_EQ(reader.number("d"), 1.5);
    EXPECT_EQ(reader.optional_boolean("b"), true);
    EXPECT_EQ(reader.object("o").size(), 1u);
    EXPECT_EQ(reader.optional_string("none"), std::nullopt);
    const auto finished = reader.finish();
    EXPECT_TRUE(finished.has_value()) << finished.error().message;
}

TEST(JsonReader, ErrorNamesTheWrongKeyAndValue) {
    const auto error = [](std::string_view text, auto read) {
        const auto object = object_of(text);
        JsonReader reader(object, "body");
        read(reader);
        const auto finished = reader.finish();
        return finished ? std::string() : finished.error().message;
    };
    EXPECT_EQ(error("{}", [](JsonReader& r) { r.string("name"); }), "body: key \"name\" is missing");
    EXPECT_EQ(error(R"({"name": 3})", [](JsonReader& r) { r.string("name"); }),
              "body: key \"name\" is 3, but must be a string");
    EXPECT_EQ(error(R"({"mame": "a"})", [](JsonReader& r) { r.optional_string("name"); }),
              "body: key \"mame\" is unknown");
    EXPECT_THAT(error(R"({"n": -1})", [](JsonReader& r) { r.unsigned_integer("n"); }), HasSubstr("-1"));
    EXPECT_THAT(error(R"({"n": 1.5})", [](JsonReader& r) { r.unsigned_integer("n"); }), HasSubstr("integer"));
    EXPECT_THAT(error(R"({"n": "1"})", [](JsonReader& r) { r.number("n"); }), HasSubstr("a number"));
    EXPECT_THAT(error(R"({"n": -0.5})", [](JsonReader& r) { r.number("n"); }), HasSubstr("0 or greater"));
    EXPECT_THAT(error(R"({"o": []})", [](JsonReader& r) { r.object("o"); }), HasSubstr("an object"));
    EXPECT_THAT(error(R"({"a": {}})", [](JsonReader& r) { r.array("a"); }), HasSubstr("an array"));
    EXPECT_THAT(error(R"({"b": null})", [](JsonReader& r) { r.optional_boolean("b"); }), HasSubstr("true or false"));
}

TEST(JsonReader, TextThatIsNotAnObjectIsRefused) {
    for (const char* wrong : {"", "[]", "3", "{", "{} {}", "nonsense", R"({"a": 1,})"}) {
        const auto parsed = parse_json_object(wrong, "request body");
        ASSERT_FALSE(parsed.has_value()) << wrong;
        EXPECT_EQ(parsed.error().code, ErrorCode::invalid_argument);
        EXPECT_THAT(parsed.error().message, HasSubstr("request body"));
    }
}

}  // namespace
}  // namespace larder
