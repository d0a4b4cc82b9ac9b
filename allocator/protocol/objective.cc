#include "allocator/protocol/objective.h"

#include <array>
#include <string>
#include <utility>

namespace larder::allocator {
namespace {

constexpr std::array<std::pair<ObjectiveKind, std::string_view>, 6> kObjectiveTexts{{
    {ObjectiveKind::efficiency, "efficiency"},
    {ObjectiveKind::max_min, "max-min"},
    {ObjectiveKind::throughput, "throughput"},
    {ObjectiveKind::utilisation, "utilisation"},
    {ObjectiveKind::equal_shares, "equal-shares"},
    {ObjectiveKind::pinned, "pinned"},
}};

// The names in earlier versions, each with its present name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kFormerNames{
    {{"max_min", "max-min"}, {"static", "equal-shares"}}};

}  // namespace

std::string objective_names() {
    std::string names;
    for (const auto& [kind, text] : kObjectiveTexts) names += (names.empty() ? "" : ", ") + std::string(text);
    return names;
}

std::string_view name(ObjectiveKind kind) {
    for (const auto& [known, text] : kObjectiveTexts) {
        if (known == kind) return text;
    }
    return "";
}

Result<ObjectiveKind> parse_objective(std::string_view text) {
    for (const auto& [kind, known] : kObjectiveTexts) {
        if (known == text) return kind;
    }
    for (const auto& [former, now] : kFormerNames) {
        if (former == text) {
            return fail(ErrorCode::invalid_argument,
                        "objective \"" + std::string(text) + "\" is now called \"" + std::string(now) + "\"");
        }
    }
    return fail(ErrorCode::invalid_argument,
                "\"" + std::string(text) + "\" is not an objective; known: " + objective_names());
}

}  // namespace larder::allocator
