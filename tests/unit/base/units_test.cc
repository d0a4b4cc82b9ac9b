#include "base/units.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace larder {
namespace {

struct BytesCase {
    const char* text;
    std::uint64_t bytes;
};

TEST(Units, ParsesSizes) {
    constexpr std::uint64_t kib = 1024;
    const BytesCase cases[] = {
        {"0", 0},
        {" 0 ", 0},
        {"0 MB", 0},
        {"1B", 1},
        {"512 B", 512},
        {"7 KB", 7'000},
        {"8 MiB", 8 * kib * kib},
        {"8MiB", 8 * kib * kib},
        {" 1.5 GiB\t", 3 * kib * kib * kib / 2},
        {"0.5 KiB", 512},
        {"10 GB", 10'000'000'000},
        {"2 TB", 2'000'000'000'000},
        {"3 TiB", 3 * kib * kib * kib * kib},
        {"7 kB", 7'000},
        {"7k", 7'000},
        {"7K", 7'000},
        {"10M", 10'000'000},
        {"10G", 10'000'000'000},
        {"2.5 T", 2'500'000'000'000},
        {"10 Gi", 10 * kib * kib * kib},
        {"2 KiB", 2 * kib},
        {"2 kiB", 2 * kib},
        {"3 PB", 3'000'000'000'000'000},
        {"9007199254740993 B", 9007199254740993},  // above what a double holds exactly
        {"18446744073709551615 B", std::numeric_limits<std::uint64_t>::max()},
    };
    for (const auto& [text, bytes] : cases) {
        const auto parsed = parse_bytes(text);
        ASSERT_TRUE(parsed) << text << ": " << parsed.error().message;
        EXPECT_EQ(*parsed, bytes) << text;
    }
}

TEST(Units, RefusesInvalidSizes) {
    for (const char* text : {"",
                             " ",
                             "10",
                             "1.5",
                             "1.5.2 GB",
                             ".5 GB",
                             "5. GB",
                             "-1 GB",
                             "+1 GB",
                             "nan GB",
                             "inf B",
                             "1e3 B",
                             "0x10 B",
                             "GB",
                             "10 gb",
                             "10 i",
                             "10 iB",
                             "10 BB",
                             "10 GBB",
                             "10 GiBi",
                             "10 MM",
                             "10 mb",
                             "10 Gbit",
                             "10 MB/s",
                             "10 MB extra",
                             "1 0 MB",
                             "10 XB",
                             "0.0",
                             "16777216 TiB",
                             "18446744073709551616 B",
                             "99999999999999999999 B",
                             "20000000.5 TiB",
                             "00"}) {
        const auto parsed = parse_bytes(text);
        ASSERT_FALSE(parsed) << text << " gave " << *parsed;
        EXPECT_EQ(parsed.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(parsed.error().message.find(text), std::string::npos) << parsed.error().message;
        EXPECT_NE(parsed.error().message.find("expected"), std::string::npos) << parsed.error().message;
    }
}

TEST(Units, ParsesRates) {
    const struct {
        const char* text;
        double bytes_per_second;
    } cases[] = {
        {"0", 0},
        {"250MB/s", 250e6},
        {"250 MB/s", 250e6},
        {"1.5 GiB/s", 1.5 * 1073741824},
        {"10Gbit", 1.25e9},
        {"10 Gbit/s", 1.25e9},
        {"80 bit/s", 10},
        {"8 kbit", 1000},
        {"2.5 Mbit", 312500},
        {"1 B/s", 1},
        {"8 kB/s", 8'000},
        {"8KB/s", 8'000},
        {"8 k/s", 8'000},
        {"200M", 200e6},
        {"250 MB", 250e6},
        {"1 GiB", 1073741824},
        {"1 Tbit/s", 125e9},
    };
    for (const auto& [text, rate] : cases) {
        const auto parsed = parse_bytes_per_second(text);
        ASSERT_TRUE(parsed) << text << ": " << parsed.error().message;
        EXPECT_DOUBLE_EQ(*parsed, rate) << text;
    }
}

TEST(Units, RefusesInvalidRates) {
    for (const char* text : {"", "10", "250 MB/m", "250 MB/s/s", "250 MB /s", "10 Gb/s", "/s", "-1 MB/s", "nan",
                             "1e300 B/s", "10 GBIT", "10/s", "2000000 TB/s"}) {
        const auto parsed = parse_bytes_per_second(text);
        ASSERT_FALSE(parsed) << text << " gave " << *parsed;
        EXPECT_EQ(parsed.error().code, ErrorCode::invalid_argument);
    }
}

TEST(Units, RefusalsGiveAnExampleOfTheFormThatTheyName) {
    EXPECT_EQ(
        parse_bytes_per_second("20").error().message,
        "\"20\" is not a rate: expected a size per second such as \"200 MB/s\", or a number and one of bit, kbit, "
        "Mbit, Gbit, such as \"1 Gbit\"");
}

TEST(Units, ParsesDurations) {
    const struct {
        const char* text;
        std::int64_t duration_ns;
    } cases[] = {{"0", 0},
                 {"5 ns", 5},
                 {"850us", 850'000},
                 {"12 ms", 12'000'000},
                 {"1.5 s", 1'500'000'000},
                 {"30s", 30'000'000'000},
                 {"2 m", 120'000'000'000},
                 {"1 h", 3'600'000'000'000}};
    for (const auto& [text, duration_ns] : cases) {
        const auto parsed = parse_duration_ns(text);
        ASSERT_TRUE(parsed) << text << ": " << parsed.error().message;
        EXPECT_EQ(*parsed, duration_ns) << text;
    }
    for (const char* text : {"", "30", "-1 s", "1 d", "2562048 h", "1 S", "nan s"}) {
        EXPECT_FALSE(parse_duration_ns(text)) << text;
    }
}

TEST(Units, FormatsSizes) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(812), "812 B");
    EXPECT_EQ(format_bytes(1024), "1.00 KiB");
    EXPECT_EQ(format_bytes(1536u << 20), "1.50 GiB");
    EXPECT_EQ(format_bytes((std::uint64_t{1} << 30) - 1), "1.00 GiB");
    EXPECT_EQ(format_bytes(std::numeric_limits<std::uint64_t>::max()), "16.00 EiB");
    EXPECT_EQ(format_bytes(999, UnitFamily::decimal), "999 B");
    EXPECT_EQ(format_bytes(1000, UnitFamily::decimal), "1.00 kB");
    EXPECT_EQ(common_unit_family(std::array<std::uint64_t, 3>{5'000'000, 0, 7'000}), UnitFamily::decimal);
    EXPECT_EQ(common_unit_family(std::array<std::uint64_t, 2>{5'000'000, 1 << 20}), UnitFamily::binary);
    // A small size alone has the family that it has anywhere else.
    EXPECT_EQ(common_unit_family(std::array<std::uint64_t, 2>{4'608, 0}), unit_family_of(4'608));
    EXPECT_EQ(format_bytes(999'999'999, UnitFamily::decimal), "1.00 GB");
    EXPECT_EQ(format_bytes(20'000'000'000'000, UnitFamily::decimal), "20.00 TB");
    EXPECT_EQ(format_bytes(10'000'000'000, UnitFamily::binary), "9.31 GiB");
}

TEST(Units, RoundsMinimumSizesUp) {
    EXPECT_EQ(format_bytes_at_least(0, UnitFamily::binary), "0 B");
    EXPECT_EQ(format_bytes_at_least(1023, UnitFamily::binary), "1023 B");
    EXPECT_EQ(format_bytes_at_least(1024, UnitFamily::binary), "1.00 KiB");
    EXPECT_EQ(format_bytes_at_least(1025, UnitFamily::binary), "1.01 KiB");
    EXPECT_EQ(format_bytes_at_least((1024u << 10) - 1, UnitFamily::binary), "1.00 MiB");
    EXPECT_EQ(format_bytes_at_least(1'234'000'001, UnitFamily::decimal), "1.24 GB");
    EXPECT_EQ(format_bytes_at_least(1'230'000'000, UnitFamily::decimal), "1.23 GB");
    std::mt19937_64 random(1);
    for (int i = 0; i < 1000; ++i) {
        const std::uint64_t bytes = random() >> (random() % 40 + 8);
        for (const UnitFamily family : {UnitFamily::decimal, UnitFamily::binary}) {
            const std::string text = format_bytes_at_least(bytes, family);
            const auto read = parse_bytes(text);
            ASSERT_TRUE(read && *read >= bytes) << bytes << " is printed as " << text;
            EXPECT_LE(static_cast<double>(*read), static_cast<double>(bytes) * 1.01 + 1) << text;
        }
    }
}

TEST(Units, FormatsSizesInTheirOriginalUnitFamily) {
    for (const char* text : {"500.00 kB", "1.00 MB", "10.00 GB", "2.05 TB", "1.50 GB", "2.25 TB", "20.00 TB",
                             "1.00 MiB", "10.00 GiB", "1.50 GiB", "2.25 TiB", "768.00 MiB", "512.00 GiB", "7.00 KiB"}) {
        const auto bytes = parse_bytes(text);
        ASSERT_TRUE(bytes) << text;
        EXPECT_EQ(parse_bytes(format_bytes(*bytes)).value(), *bytes) << text;
        EXPECT_EQ(format_bytes(*bytes).contains('i'), std::string_view(text).contains('i')) << text;
    }
    EXPECT_EQ(format_bytes(10'000'000'000), "10.00 GB");
    EXPECT_EQ(format_bytes(10'000'000'001), "9.31 GiB");
}

TEST(Units, FormatsRates) {
    EXPECT_EQ(format_bytes_per_second(0), "0 B/s");
    EXPECT_EQ(format_bytes_per_second(-1), "0 B/s");
    EXPECT_EQ(format_bytes_per_second(std::nan("")), "0 B/s");
    EXPECT_EQ(format_bytes_per_second(999), "999 B/s");
    EXPECT_EQ(format_bytes_per_second(999.9), "1.00 kB/s");
    EXPECT_EQ(format_bytes_per_second(125e6), "125.00 MB/s");
    EXPECT_EQ(format_bytes_per_second(999.999e6), "1.00 GB/s");
    EXPECT_EQ(format_bytes_per_second(2.5e13), "25.00 TB/s");
    EXPECT_EQ(format_bytes_per_second(1e15), "no limit");
}

TEST(Units, FormatsDurations) {
    EXPECT_EQ(format_duration_ns(7), "7 ns");
    EXPECT_EQ(format_duration_ns(850'000), "850 us");
    EXPECT_EQ(format_duration_ns(12'345'678), "12 ms");
    EXPECT_EQ(format_duration_ns(4'200'000'000), "4.2 s");
    EXPECT_EQ(format_duration_ns(59'990'000'000), "1m 00s");
    EXPECT_EQ(format_duration_ns(200'000'000'000), "3m 20s");
    EXPECT_EQ(format_duration_ns(7'500'000'000'000), "2h 05m");
    EXPECT_EQ(format_duration_ns(-4'200'000'000), "-4.2 s");
    EXPECT_EQ(format_duration_ns(std::numeric_limits<std::int64_t>::min()),
              format_duration_ns(std::numeric_limits<std::int64_t>::min() + 1));
}

}  // namespace
}  // namespace larder
