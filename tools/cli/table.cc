#include "tools/cli/table.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "base/utf8.h"

namespace larder::cli {
namespace {

// Returns the columns a text takes on a terminal: one for each UTF-8 sequence.
std::size_t width_of(const std::string& text) {
    return static_cast<std::size_t>(
        std::ranges::count_if(text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }));
}

std::string lower(std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char letter) { return std::tolower(letter); });
    return text;
}

// Returns the number in a cell, with the prefix of its unit: "1,281", "125 MB/s", "34.5 %", "3 ms". Nothing for text.
std::optional<double> number_in(std::string cell) {
    std::erase(cell, ',');
    char* end = nullptr;
    const double number = std::strtod(cell.c_str(), &end);
    if (end == cell.c_str()) return std::nullopt;
    std::string_view unit(end);
    while (unit.starts_with(' ')) unit.remove_prefix(1);
    if (unit.empty() || unit.starts_with('%') || unit.starts_with('B')) return number;
    constexpr std::pair<std::string_view, double> kTimes[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3},
                                                              {"s", 1},     {"h", 3600},  {"min", 60}};
    for (const auto& [name, seconds] : kTimes) {
        if (unit == name) return number * seconds;
    }
    constexpr std::string_view kPrefixes = "kMGTPE";
    const std::size_t prefix = kPrefixes.find(unit.front() == 'K' ? 'k' : unit.front());
    if (prefix == std::string_view::npos) return number;
    return number * std::pow(unit.substr(1).starts_with('i') ? 1024.0 : 1000.0, static_cast<double>(prefix + 1));
}

constexpr std::size_t kGap = 2;
constexpr std::size_t kNameColumnsLeast = 12;

// Returns the text with the number cut to three digits: "125.00 MB/s" gives "125 MB/s".
std::string three_digits(const std::string& text) {
    const std::size_t point = text.find('.');
    const std::size_t unit = text.find(' ');
    if (point == std::string::npos || unit == std::string::npos) return text;
    char number[32];
    std::snprintf(number, sizeof number, "%.*f", point >= 3 ? 0 : static_cast<int>(3 - point),
                  std::strtod(text.c_str(), nullptr));
    return number + text.substr(unit);
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
    for (std::string& cell : cells) cell = printable(cell);
    rows_.push_back(std::move(cells));
}

void Table::choose(const RowChoice& choice) {
    if (const std::string wanted = lower(choice.filter); !wanted.empty()) {
        std::erase_if(rows_, [&](const std::vector<std::string>& row) {
            return std::ranges::none_of(row, [&](const std::string& cell) { return lower(cell).contains(wanted); });
        });
    }
    const auto heading = std::ranges::find(headings_, lower(choice.column), lower);
    if (heading == headings_.end()) return;
    const auto column = static_cast<std::size_t>(heading - headings_.begin());
    const bool descends = right_[column] != choice.reversed;
    std::ranges::stable_sort(rows_, [&](const std::vector<std::string>& a, const std::vector<std::string>& b) {
        const bool a_is_empty = a[column].empty() || a[column] == "-";
        const bool b_is_empty = b[column].empty() || b[column] == "-";
        if (a_is_empty || b_is_empty) return !a_is_empty && b_is_empty;
        const auto before = [&](const auto& first, const auto& second) {
            return descends ? second < first : first < second;
        };
        const auto a_number = number_in(a[column]);
        const auto b_number = number_in(b[column]);
        if (right_[column] && a_number && b_number) return before(*a_number, *b_number);
        return before(lower(a[column]), lower(b[column]));
    });
}

std::vector<std::size_t> Table::widths() const {
    std::vector<std::size_t> widths;
    for (std::size_t column = 0; column < headings_.size(); ++column) {
        std::size_t width = width_of(headings_[column]);
        for (const auto& row : rows_) width = std::max(width, width_of(row[column]));
        widths.push_back(width);
    }
    return widths;
}

std::string Table::text() const {
    return text_of(widths());
}

std::string Table::text_within(std::size_t columns, std::initializer_list<std::string_view> dispensable) const {
    std::vector<std::size_t> fitted = widths();
    const auto total = [&] {
        std::size_t sum = 0;
        for (const std::size_t width : fitted) sum += width == 0 ? 0 : width + kGap;
        return sum - std::min(sum, kGap);
    };
    // The widest name is shortened first, down to `least`.
    const auto narrow = [&](std::size_t least) {
        while (total() > columns) {
            std::size_t widest = fitted.size();
            for (std::size_t i = 0; i < fitted.size(); ++i) {
                if (!right_[i] && fitted[i] > least && (widest == fitted.size() || fitted[i] > fitted[widest]))
                    widest = i;
            }
            if (widest == fitted.size()) return;
            --fitted[widest];
        }
    };
    const std::vector<std::size_t> wide = fitted;
    narrow(kNameColumnsLeast);
    for (const std::string_view heading : dispensable) {
        if (total() <= columns) break;
        const auto at = static_cast<std::size_t>(std::ranges::find(headings_, heading) - headings_.begin());
        if (at == headings_.size()) continue;
        // The room of the column left out goes to names that were cut off.
        for (std::size_t i = 0; i < fitted.size(); ++i) fitted[i] = fitted[i] == 0 ? 0 : wide[i];
        fitted[at] = 0;
        narrow(kNameColumnsLeast);
    }
    narrow(1);
    return text_of(fitted);
}

// Returns the table's text. A column of width 0 is left out.
std::string Table::text_of(const std::vector<std::size_t>& widths) const {
    std::string text;
    const auto write = [&](const std::vector<std::string>& cells) {
        std::string line;
        bool first = true;
        for (std::size_t column = 0; column < cells.size(); ++column) {
            if (widths[column] == 0) continue;
            const std::string cell = cut_to(cells[column], widths[column]);
            const std::string padding(widths[column] - width_of(cell), ' ');
            if (!std::exchange(first, false)) line += std::string(kGap, ' ');
            line += right_[column] ? padding + cell : cell + padding;
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
        text += name + std::string(width - width_of(name) + 2, ' ') + printable(value, "\n") + '\n';
    }
    return text;
}

std::string printable(std::string_view given, std::string_view kept) {
    const std::string utf8 = escape_non_utf8(given);
    const std::string_view text = utf8;
    std::string shown;
    shown.reserve(text.size());
    const auto escape = [&](char byte) {
        constexpr std::string_view kDigits = "0123456789abcdef";
        const auto value = static_cast<unsigned char>(byte);
        shown += {'\\', 'x', kDigits[value >> 4], kDigits[value & 15]};
    };
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t bytes = utf8_sequence_bytes(text.substr(at));
        const std::string_view letter = text.substr(at, bytes);
        const bool is_c1 = bytes == 2 && letter >= "\xc2\x80" && letter <= "\xc2\x9f";
        const bool is_control = bytes == 1 && (static_cast<unsigned char>(letter[0]) < ' ' || letter[0] == 0x7f);
        if ((!is_c1 && !is_control) || kept.contains(letter)) {
            shown += letter;
        } else if (letter == "\n" || letter == "\t") {
            shown += letter == "\n" ? "\\n" : "\\t";
        } else {
            for (const char byte : letter) escape(byte);
        }
        at += letter.size();
    }
    return shown;
}

std::string cut_to(const std::string& text, std::size_t width) {
    if (width_of(text) <= width) return text;
    std::size_t end = 0;
    for (std::size_t columns = 0; end < text.size(); ++end) {
        const bool begins = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
        if (begins && ++columns == width) break;
    }
    return text.substr(0, end) + "\u2026";
}

std::string or_dash(const std::string& text) {
    return text.empty() ? "-" : text;
}

std::string format_counted(std::uint64_t count, std::string_view noun) {
    return format_count(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
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

std::string format_rate_short(double bytes_per_second) {
    return three_digits(format_bytes_per_second(bytes_per_second));
}

std::string format_bytes_short(std::uint64_t bytes) {
    return three_digits(format_bytes(bytes));
}

std::string format_limit(double bytes_per_second) {
    return bytes_per_second > 0 ? format_bytes_per_second(bytes_per_second) : "none";
}

}  // namespace larder::cli
