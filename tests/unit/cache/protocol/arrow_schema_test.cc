// Arrow's schema, as pyarrow 21 writes it: only the metadata of the whole schema may differ. Cut-off and changed bytes
// are compared as they are.

#include "cache/protocol/arrow_schema.h"

#include <gtest/gtest.h>

#include <string>

namespace larder::protocol {
namespace {

// A column "a" of durations.
const std::string kSeconds =
    "/////3AAAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAEAAAAUAAAAEAAUAAgABgAHAAwA"
    "AAAQABAAAAAAAAESEAAAABgAAAAEAAAAAAAAAAEAAABhAAYACAAGAAYAAAAAAAAA";
const std::string kSecondsWithMetadata =
    "/////6gAAAAQAAAAAAAKAA4ABgAFAAgACgAAAAABBAAQAAAAAAAKAAwAAAAEAAgACgAAADgAAAAEAAAAAQAAAAwAAAAIAAwA"
    "BAAIAAgAAAAQAAAABAAAAAIAAAB7fQAABgAAAHBhbmRhcwAAAQAAABQAAAAQABQACAAGAAcADAAAABAAEAAAAAAAARIQAAAA"
    "GAAAAAQAAAAAAAAAAQAAAGEABgAIAAYABgAAAAAAAAA=";
const std::string kSecondsPaddedOtherwise =
    "//////gAAAAQAAAAAAAKAA4ABgAFAAgACgAAAAABBAAQAAAAAAAKAAwAAAAEAAgACgAAAIQAAAAEAAAAAQAAAAwAAAAIAAwA"
    "BAAIAAgAAABgAAAABAAAAFAAAAB4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4"
    "eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eAAAAAABAAAAcAAAAAEAAAAUAAAAEAAUAAgABgAHAAwAAAAQABAAAAAAAAES"
    "EAAAABgAAAAEAAAAAAAAAAEAAABhAAYACAAGAAYAAAAAAAAAAAAAAA==";
const std::string kMilliseconds =
    "/////3AAAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAEAAAAUAAAAEAAUAAgABgAHAAwA"
    "AAAQABAAAAAAAAESEAAAABgAAAAEAAAAAAAAAAEAAABhAAAABAAEAAQAAAAAAAAA";

TEST(ArrowSchema, FieldsWithoutTheMetadataOfTheSchema) {
    EXPECT_EQ(arrow_schema_fields(kSeconds), arrow_schema_fields(kSecondsWithMetadata));
    EXPECT_EQ(arrow_schema_fields(kSeconds), arrow_schema_fields(kSecondsPaddedOtherwise));
    EXPECT_NE(arrow_schema_fields(kSeconds), arrow_schema_fields(kMilliseconds));
    EXPECT_LT(arrow_schema_fields(kSeconds).size(), kSeconds.size() / 2) << "the message was understood";
}

TEST(ArrowSchema, WhatIsNoMessageIsComparedWhole) {
    for (const std::string text : {"", "value of ARROW:schema", "AAAA", "/////w==", "/////wAAAAD/////"}) {
        EXPECT_EQ(arrow_schema_fields(text), text);
    }
}

TEST(ArrowSchema, DamagedMessagesAreReadWithinTheirBounds) {
    const std::string whole(kSecondsWithMetadata);
    for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_LE(arrow_schema_fields(whole.substr(0, i)).size(), whole.size());
        for (const char letter : {'A', '/', '8', 'g'}) {
            std::string changed = whole;
            changed[i] = letter;
            EXPECT_LE(arrow_schema_fields(changed).size(), whole.size());
        }
    }
}

}  // namespace
}  // namespace larder::protocol
