#include "allocator/protocol/objective.h"

#include <array>
#include <string>
#include <utility>

namespace larder::allocator {
namespace {

constexpr std::array<std::pair<ObjectiveKind, std::string_view>, 6> kObjectiveTexts{{
    {ObjectiveKind::efficiency, "efficiency"},
    {ObjectiveKind::max_min, "max_min"},
    {ObjectiveKind::throughput, "throughput"},
    {ObjectiveKind::utilisation, "utilisation"},
    {ObjectiveKind::equal_shares, "static"},
    {ObjectiveKind::pinned, "pinned"},
}};

}  // namespace

std::string_view name(ObjectiveKind kind) {
    for (const auto& [of, text] : kObjectiveTexts) {
        if (of == kind) return text;
    }
    return "";
}

Result<ObjectiveKind> parse_objective(std::string_view text) {
    std::string known;
    for (const auto& [of, named] : kObjectiveTexts) {
        if (named == text) return of;
        known += (known.empty() ? "" : ", ") + std::string(named);
    }
    return fail(ErrorCode::invalid_argument, "\"" + std::string(text) + "\" is no objective; known: " + known);
}

}  // namespace larder::allocator
