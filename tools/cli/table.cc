#include "tools/cli/table.h"

#include <algorithm>
#include <cstdio>

#include "base/units.h"

namespace larder::cli {
namespace {

// Columns on a terminal: one for each UTF-8 sequence.
std::size_t width_of(const std::string& text) {
    return static_cast<std::size_t>(
        std::ranges::count_if(text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }));
}

}  // namespace

Table::Table(std::vector<std::string> headings) : headings_(std::move(headings)) {
    for (std::string& heading : headings_) {
        right_.push_back(heading.starts_with('>'));
        if (right_.back()) heading.erase(0, 1);
    }
}

void Table::add(std::vector<std::string> cells) {
    cells.resize(headings_.size());
    rows_.push_back(std::move(cells));
}

std::string Table::text() const {
    std::vector<std::size_t> widths;
    for (std::size_t column = 0; column < headings_.size(); ++column) {
        std::size_t width = width_of(headings_[column]);
        for (const auto& row : rows_) width = std::max(width, width_of(row[column]));
        widths.push_back(width);
    }
    std::string text;
    const auto write = [&](const std::vector<std::string>& cells) {
        std::string line;
        for (std::size_t column = 0; column < cells.size(); ++column) {
            const std::string padding(widths[column] - width_of(cells[column]), ' ');
            if (column > 0) line += "  ";
            line += right_[column] ? padding + cells[column] : cells[column] + padding;
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + '\n';
    };
    write(headings_);
    for (const auto& row : rows_) write(row);
    return text;
}

std::string name_value_text(const std::vector<std::pair<std::string, std::string>>& values) {
    std::size_t width = 0;
    for (const auto& [name, value] : values) width = std::max(width, width_of(name));
    std::string text;
    for (const auto& [name, value] : values) {
        text += name + std::string(width - width_of(name) + 2, ' ') + value + '\n';
    }
    return text;
}

std::string format_count(std::uint64_t count) {
    std::string text = std::to_string(count);
    for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
    return text;
}

std::string format_part(double part, double whole) {
    if (!(whole > 0)) return "-";
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.1f %%", 100 * part / whole);
    return buffer;
}

std::string format_seconds(double seconds) {
    if (seconds < 1e-9) return "0 s";
    return format_duration_ns(static_cast<std::int64_t>(seconds * 1e9));
}

std::string format_limit(double bytes_per_second) {
    return bytes_per_second > 0 ? format_bytes_per_second(bytes_per_second) : "none";
}

}  // namespace larder::cli
