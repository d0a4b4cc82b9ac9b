#pragma once

// Text for people: tables with aligned columns, lists of named values, and numbers that can be read.

#include <cstdint>
#include <string>
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

private:
    std::vector<std::string> headings_;
    std::vector<bool> right_;
    std::vector<std::vector<std::string>> rows_;
};

// "name     value", a line each.
std::string name_value_text(const std::vector<std::pair<std::string, std::string>>& values);

// "1,281,167"
std::string format_count(std::uint64_t count);
// "34.5 %"; "-" for a part of nothing.
std::string format_part(double part, double whole);
// "1.234 s", as durations in base/units.h.
std::string format_seconds(double seconds);
// "none" for 0: a rate limit.
std::string format_limit(double bytes_per_second);

}  // namespace larder::cli
