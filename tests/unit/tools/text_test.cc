// The CLI's text for people: tables and progress lines.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tools/cli/live.h"
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

TEST(Table, ShowsControlCharactersAsEscapes) {
    Table table({"NAME", ">COUNT"});
    table.add({"a\x1b[2Jb\nc\td", "1"});
    table.add({"\xc2\x9b \x9b \xc3 \u00fc \U0001f600 \x7f", "2"});
    EXPECT_EQ(table.text(),
              "NAME                         COUNT\n"
              "a\\x1b[2Jb\\nc\\td                  1\n"
              "\\xc2\\x9b \\x9b \\xc3 \u00fc \U0001f600 \\x7f      2\n");
    EXPECT_EQ(printable("a\nb\x1b", "\n"), "a\nb\\x1b");
    EXPECT_EQ(name_value_text({{"a", "1\x1b"}}), "a  1\\x1b\n");
}

// The first column of the rows that a choice leaves, in order.
std::vector<std::string> rows_of(const RowChoice& choice) {
    Table table({"NAME", ">SIZE", ">RATE", ">PART", ">TIME"});
    table.add({"bert", "1.50 GiB", "125 MB/s", "34.5 %", "3 ms"});
    table.add({"Alexnet", "900 MiB", "1.25 GB/s", "-", "2 s"});
    table.add({"gpt", "2.00 kB", "-", "9.0 %", "850 us"});
    table.add({"resnet", "1,281", "0 B/s", "100 %", "4.2 s"});
    table.choose(choice);
    std::vector<std::string> names;
    const std::string text = table.text();
    for (std::size_t at = text.find('\n') + 1; at < text.size(); at = text.find('\n', at) + 1) {
        names.push_back(text.substr(at, text.find(' ', at) - at));
    }
    return names;
}

TEST(Table, SortsNumbersByTheirUnitsAndNamesByTheAlphabet) {
    using ::testing::ElementsAre;
    EXPECT_THAT(rows_of({}), ElementsAre("bert", "Alexnet", "gpt", "resnet"));
    EXPECT_THAT(rows_of({.column = "NO SUCH"}), ElementsAre("bert", "Alexnet", "gpt", "resnet"));
    EXPECT_THAT(rows_of({.column = "name"}), ElementsAre("Alexnet", "bert", "gpt", "resnet"));
    EXPECT_THAT(rows_of({.column = "NAME", .reversed = true}), ElementsAre("resnet", "gpt", "bert", "Alexnet"));
    EXPECT_THAT(rows_of({.column = "SIZE"}), ElementsAre("bert", "Alexnet", "gpt", "resnet"));
    EXPECT_THAT(rows_of({.column = "RATE"}), ElementsAre("Alexnet", "bert", "resnet", "gpt"));
    EXPECT_THAT(rows_of({.column = "RATE", .reversed = true}), ElementsAre("resnet", "bert", "Alexnet", "gpt"));
    EXPECT_THAT(rows_of({.column = "PART"}), ElementsAre("resnet", "bert", "gpt", "Alexnet"));
    EXPECT_THAT(rows_of({.column = "TIME"}), ElementsAre("resnet", "Alexnet", "bert", "gpt"));
}

TEST(Table, FiltersByTextInAnyCellAndCase) {
    using ::testing::ElementsAre;
    EXPECT_THAT(rows_of({.filter = "NET"}), ElementsAre("Alexnet", "resnet"));
    EXPECT_THAT(rows_of({.column = "RATE", .reversed = true, .filter = "b/s"}),
                ElementsAre("resnet", "bert", "Alexnet"));
    EXPECT_THAT(rows_of({.filter = "nothing"}), ElementsAre());
}

TEST(LiveKeys, SortReverseAndFilter) {
    LiveKeys keys({}, {"NAME", "SIZE"});
    EXPECT_FALSE(keys.take(">"));
    EXPECT_EQ(keys.rows().column, "NAME");
    EXPECT_FALSE(keys.take(">>"));
    EXPECT_EQ(keys.rows().column, "");
    EXPECT_FALSE(keys.take("<r"));
    EXPECT_EQ(keys.rows().column, "SIZE");
    EXPECT_TRUE(keys.rows().reversed);
    EXPECT_FALSE(keys.take("/qrx"));
    EXPECT_EQ(keys.rows().filter, "qrx");
    EXPECT_EQ(keys.footer(), "filter: qrx_ (Enter: keep, Esc: drop)\n");
    EXPECT_FALSE(keys.take("\x7f\n"));
    EXPECT_EQ(keys.rows().filter, "qr");
    EXPECT_EQ(keys.footer(), "press q to quit, < > to sort (SIZE reversed), r to reverse, / to filter (qr)\n");
    EXPECT_FALSE(
        keys.take("/\x7f"
                  "a\x1b"));
    EXPECT_EQ(keys.rows().filter, "");
    EXPECT_TRUE(keys.take("xq"));
}

TEST(LiveKeys, FilterHoldsWholeCharacters) {
    LiveKeys keys({}, {"NAME"});
    EXPECT_FALSE(keys.take("/a\u00fc\t\x15"));
    EXPECT_EQ(keys.rows().filter, "a\u00fc");
    EXPECT_FALSE(keys.take("\x7f"));
    EXPECT_EQ(keys.rows().filter, "a");
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
