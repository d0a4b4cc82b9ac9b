#pragma once

// Output for people: tables with aligned columns, lists of named values, and readable numbers.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace larder::cli {

// Chooses and orders the rows of a table. Empty: all, as they were added.
struct RowChoice {
    std::string column;     // a heading, in any case; tables without this column keep their order
    bool reversed = false;  // numbers begin with the largest otherwise, names with the first in the alphabet
    std::string filter;     // shows rows that contain it in a cell, in any case
};

// A table with columns as wide as their widest cell. A heading that begins with '>' aligns its column to the right.
class Table {
public:
    explicit Table(std::vector<std::string> headings);
    void add(std::vector<std::string> cells);
    void choose(const RowChoice& choice);
    bool empty() const { return rows_.empty(); }
    std::string text() const;
    // Returns text at most `columns` wide: long names are cut off, and columns are left out, in the order of
    // `dispensable` (their headings).
    std::string text_within(std::size_t columns, std::initializer_list<std::string_view> dispensable) const;

private:
    std::vector<std::size_t> widths() const;
    std::string text_of(const std::vector<std::size_t>& widths) const;

    std::vector<std::string> headings_;
    std::vector<bool> right_;
    std::vector<std::vector<std::string>> rows_;
};

// Returns "name     value" lines.
std::string name_value_text(const std::vector<std::pair<std::string, std::string>>& values);

// Returns the text with control characters, except those in `kept`, and bytes that are no UTF-8 as "\n" or "\x1b":
// names of files can hold them, and would move the cursor or change the terminal's title.
std::string printable(std::string_view text, std::string_view kept = {});

// Returns the text, or its beginning and an ellipsis: `columns` wide at most.
std::string cut_to(const std::string& text, std::size_t columns);

// Returns the text of a cell; "-" for an empty text.
std::string or_dash(const std::string& text);

// Formats a count: "1,281,167".
std::string format_count(std::uint64_t count);
// Formats a count and its noun: "1 block", "2 blocks".
std::string format_counted(std::uint64_t count, std::string_view noun);
// Formats a part: "34.5 %"; "-" if the whole is 0.
std::string format_part(double part, double whole);
// Formats seconds: "1.234 s"; see durations in base/units.h.
std::string format_seconds(double seconds);
// Formats a rate with three digits: "125 MB/s", "1.25 GB/s", "0 B/s".
std::string format_rate_short(double bytes_per_second);
// Formats a size with three digits, in the family of units it was given in: "1.50 GiB", "384 MiB".
std::string format_bytes_short(std::uint64_t bytes);
// Formats a rate limit; "none" for 0.
std::string format_limit(double bytes_per_second);

}  // namespace larder::cli
