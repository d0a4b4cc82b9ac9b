// The CLI's text for people: tables and progress lines.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tools/cli/progress.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

TEST(Table, AlignsByTheWidestCell) {
    Table table({"NAME", ">COUNT", "NOTE"});
    EXPECT_TRUE(table.empty());
    table.add({"a", "1", "x"});
    table.add({"longer", "1,000"});
    table.add({"\u00fc\u00fc", "20", "\u00e9"});
    EXPECT_EQ(table.text(),
              "NAME    COUNT  NOTE\n"
              "a           1  x\n"
              "longer  1,000\n"
              "\u00fc\u00fc         20  \u00e9\n");
}

// The width of the widest line, in columns.
std::size_t width_of_lines(const std::string& text) {
    std::size_t widest = 0;
    std::size_t columns = 0;
    for (const char byte : text) {
        if (byte == '\n')
            columns = 0;
        else if ((static_cast<unsigned char>(byte) & 0xc0) != 0x80)
            widest = std::max(widest, ++columns);
    }
    return widest;
}

TEST(Table, TruncatesNamesThenDropsColumnsToFit) {
    Table table({"NAME", ">COUNT", "ON", ">RATE"});
    table.add({"a-name-of-twenty-six-chars", "1,000", "\u00fcber-all-the-nodes", "1.25 GB/s"});
    EXPECT_EQ(table.text_within(200, {"RATE"}), table.text());
    EXPECT_EQ(table.text_within(50, {"RATE"}),
              "NAME             COUNT  ON                    RATE\n"
              "a-name-of-twen\u2026  1,000  \u00fcber-all-the-n\u2026  1.25 GB/s\n");
    EXPECT_EQ(table.text_within(34, {"RATE", "COUNT"}),
              "NAME          COUNT  ON\n"
              "a-name-of-t\u2026  1,000  \u00fcber-all-the\u2026\n");
    EXPECT_EQ(table.text_within(32, {"RATE", "COUNT"}),
              "NAME             ON\n"
              "a-name-of-twen\u2026  \u00fcber-all-the-n\u2026\n");
    for (std::size_t columns = 12; columns < 80; ++columns) {
        EXPECT_LE(width_of_lines(table.text_within(columns, {"RATE", "COUNT"})), columns);
    }
}

TEST(Table, NameValueTextAlignsValues) {
    EXPECT_EQ(name_value_text({{"a", "1"}, {"long name", "2"}}), "a          1\nlong name  2\n");
}

TEST(Numbers, AreReadable) {
    EXPECT_EQ(format_count(0), "0");
    EXPECT_EQ(format_count(999), "999");
    EXPECT_EQ(format_count(1000), "1,000");
    EXPECT_EQ(format_count(1281167), "1,281,167");
    EXPECT_EQ(format_part(1, 3), "33.3 %");
    EXPECT_EQ(format_part(0, 0), "-");
    EXPECT_EQ(format_limit(0), "none");
    EXPECT_EQ(format_limit(2e8), "200.00 MB/s");
    EXPECT_EQ(format_rate_short(0), "0 B/s");
    EXPECT_EQ(format_rate_short(1.25e9), "1.25 GB/s");
    EXPECT_EQ(format_rate_short(12.34e6), "12.3 MB/s");
    EXPECT_EQ(format_rate_short(125e6), "125 MB/s");
    EXPECT_EQ(format_bytes_short(384u << 20), "384 MiB");
    EXPECT_EQ(format_bytes_short(10'000'000'000), "10.0 GB");
    EXPECT_EQ(format_seconds(200), "3m 20s");
    EXPECT_EQ(format_seconds(0), "0 s");
}

TEST(ProgressLine, ShowsPercentageRateAndTimeLeft) {
    EXPECT_EQ(progress_line("indexing images",
                            {.done = 250, .total = 1000, .unit = "objects", .bytes_done = 0, .seconds = 10}, 200),
              "indexing images  [======>                 ] 25%  250 of 1,000 objects  25/s  30.0 s left");
    EXPECT_EQ(
        progress_line("warming x",
                      {.done = 1 << 20, .total = 4 << 20, .unit = "bytes", .bytes_done = 1 << 20, .seconds = 1}, 200),
        "warming x  [======>                 ] 25%  1.00 MiB of 4.00 MiB  1.05 MB/s  3.0 s left");
    EXPECT_EQ(progress_line("done", {.done = 4, .total = 4, .unit = "blocks", .bytes_done = 8, .seconds = 2}, 200),
              "done  [========================] 100%  4 of 4 blocks  4 B/s");
}

TEST(ProgressLine, OmitsUnknownValues) {
    EXPECT_EQ(progress_line("x", {.done = 1500, .total = 0, .unit = "objects", .seconds = 0, .resumed = 1200}, 200),
              "x  1,500 objects (1,200 from before)");
    EXPECT_EQ(progress_line("x", {.done = 12, .total = 0, .unit = "objects", .bytes_done = 0, .seconds = 0.1}, 200),
              "x  12 objects");
    EXPECT_EQ(progress_line("x", {.done = 2, .total = 24, .unit = "simulations", .seconds = 10}, 200),
              "x  [==>                     ] 8%  2 of 24 simulations  1m 50s left")
        << "no rate below 1/s";
    EXPECT_EQ(progress_line("x", {.done = 5, .total = 4, .unit = "objects", .bytes_done = 0, .seconds = 0}, 200),
              "x  [========================] 100%  5 of 4 objects")
        << "never above 100 %, even with more objects than expected";
    EXPECT_EQ(progress_line("Größe", {.done = 1, .total = 2, .unit = "objects", .bytes_done = 0, .seconds = 0}, 6),
              "Größ…")
        << "columns are characters, not bytes";
}

}  // namespace
}  // namespace larder::cli
