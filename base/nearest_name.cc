#include "base/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace larder {
namespace {

// A shorter part of a name would be near to almost any name.
constexpr std::size_t kPartBytesMin = 4;
constexpr std::size_t kBeginningBytesMin = 3;

// The Damerau-Levenshtein distance, where no letter is changed twice (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1);  // distances of a's first i - 1 letters, by letters of b
    std::vector<std::size_t> last(b.size() + 1);    // of a's first i letters
    std::vector<std::size_t> row(b.size() + 1);     // of a's first i + 1 letters
    std::iota(last.begin(), last.end(), 0);
    for (std::size_t i = 0; i < a.size(); ++i) {
        row[0] = i + 1;
        for (std::size_t j = 0; j < b.size(); ++j) {
            row[j + 1] = std::min({row[j] + 1, last[j + 1] + 1, last[j] + (a[i] == b[j] ? 0 : 1)});
            if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
                row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
        }
        std::swap(before, last);
        std::swap(last, row);
    }
    return last[b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view wrong, std::span<const std::string> known) {
    const std::size_t distance_max = 1 + wrong.size() / 4;
    const auto nearest =
        std::ranges::min_element(known, {}, [&](const std::string& name) { return edit_distance(wrong, name); });
    if (nearest != known.end() && edit_distance(wrong, *nearest) <= distance_max) return *nearest;
    const auto begins_so = [&](const std::string& name) { return name.starts_with(wrong); };
    if (wrong.size() >= kBeginningBytesMin && std::ranges::count_if(known, begins_so) == 1)
        return *std::ranges::find_if(known, begins_so);
    // The longest name that `wrong` continues: "state" for "state_directory".
    std::optional<std::string> continued;
    for (const std::string& name : known) {
        const bool is_beginning = wrong.starts_with(name) && wrong.substr(name.size()).find_first_of("_-.") == 0;
        if (is_beginning && name.size() >= kPartBytesMin && (!continued || name.size() > continued->size()))
            continued = name;
    }
    if (continued) return continued;
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
