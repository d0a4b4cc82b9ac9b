#include "allocator/protocol/objective.h"

#include <array>
#include <string>
#include <utility>

namespace larder::allocator {
namespace {

// The names in earlier versions, each with its present name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kFormerNames{
    {{"max_min", "max-min"}, {"static", "equal-shares"}}};

}  // namespace

std::string_view name(ObjectiveKind kind) {
    for (const auto& [known, text] : kObjectiveTexts) {
        if (known == kind) return text;
    }
    return "";
}

std::string objective_names() {
    std::string joined;
    for (const auto& [kind, text] : kObjectiveTexts) {
        if (!joined.empty()) joined += ", ";
        joined += text;
    }
    return joined;
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
