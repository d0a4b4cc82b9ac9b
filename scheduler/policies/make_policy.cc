#include <array>

#include "scheduler/policies/fifo.h"
#include "scheduler/policy.h"

namespace larder::scheduler {
namespace {

struct Maker {
    std::string_view name;
    std::unique_ptr<Policy> (*make)(const PolicyOptions& options);
};

constexpr std::array kMakers{
    Maker{"fifo", [](const PolicyOptions&) -> std::unique_ptr<Policy> { return std::make_unique<Fifo>(false); }},
    Maker{"fifo-backfill",
          [](const PolicyOptions&) -> std::unique_ptr<Policy> { return std::make_unique<Fifo>(true); }},
};

}  // namespace

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyOptions& options) {
    for (const Maker& maker : kMakers) {
        if (maker.name == name) return maker.make(options);
    }
    std::string known;
    for (const std::string_view one : policy_names()) known += (known.empty() ? "" : ", ") + std::string(one);
    return fail(ErrorCode::not_found, "there is no policy \"" + std::string(name) + "\"; there are " + known);
}

std::vector<std::string_view> policy_names() {
    std::vector<std::string_view> names;
    names.reserve(kMakers.size());
    for (const Maker& maker : kMakers) names.push_back(maker.name);
    return names;
}

}  // namespace larder::scheduler
