#pragma once

// Text for people: tables with aligned columns, lists of named values, and numbers that can be read.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace larder::cli {

// Columns are as wide as their widest cell. A heading that begins with '>' has its column aligned to the right.
class Table {
public:
    explicit Table(std::vector<std::string> headings);
    void add(std::vector<std::string> cells);
    bool empty() const { return rows_.empty(); }
    std::string text() const;
    // At most so many columns wide: long names are cut off, and columns left out, the first of `dispensable` (their
    // headings) first.
    std::string text_within(std::size_t columns, std::initializer_list<std::string_view> dispensable) const;

private:
    std::vector<std::size_t> widths() const;
    std::string text_of(const std::vector<std::size_t>& widths) const;

    std::vector<std::string> headings_;
    std::vector<bool> right_;
    std::vector<std::vector<std::string>> rows_;
};

// "name     value", a line each.
std::string name_value_text(const std::vector<std::pair<std::string, std::string>>& values);

// The text, or its beginning and an ellipsis: `columns` wide at most.
std::string cut_to(const std::string& text, std::size_t columns);

// "1,281,167"
std::string format_count(std::uint64_t count);
// "34.5 %"; "-" for a part of nothing.
std::string format_part(double part, double whole);
// "1.234 s", as durations in base/units.h.
std::string format_seconds(double seconds);
// Three digits: "125 MB/s", "1.25 GB/s", "0 B/s".
std::string format_rate_short(double bytes_per_second);
// Three digits, in the family of units the size was given in: "1.50 GiB", "384 MiB".
std::string format_bytes_short(std::uint64_t bytes);
// "none" for 0: a rate limit.
std::string format_limit(double bytes_per_second);

}  // namespace larder::cli
