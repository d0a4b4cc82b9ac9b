#include "base/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace larder {
namespace {

// A shorter part of a name would be near to almost any name.
constexpr std::size_t kPartBytesMin = 4;

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), 0);
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i + 1;
        for (std::size_t j = 0; j < b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({row[j] + 1, diagonal + 1, replaced});
        }
    }
    return row[b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view wrong, std::span<const std::string> known) {
    const std::size_t distance_max = 1 + wrong.size() / 4;
    const auto nearest =
        std::ranges::min_element(known, {}, [&](const std::string& name) { return edit_distance(wrong, name); });
    if (nearest != known.end() && edit_distance(wrong, *nearest) <= distance_max) return *nearest;
    if (wrong.size() < kPartBytesMin) return std::nullopt;
    for (const std::string& name : known) {
        for (std::size_t begin = 0; begin < name.size();) {
            const std::size_t end = std::min(name.find_first_of("_-.", begin), name.size());
            const std::string_view part = std::string_view(name).substr(begin, end - begin);
            if (part.size() >= kPartBytesMin && edit_distance(wrong, part) <= distance_max) return name;
            begin = end + 1;
        }
    }
    return std::nullopt;
}

}  // namespace larder
