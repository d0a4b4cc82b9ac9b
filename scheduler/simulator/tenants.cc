#include "scheduler/simulator/tenants.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "base/file.h"
#include "base/server/config_values.h"

namespace larder::scheduler {
namespace {

struct TenantKeys {
    double weight = 1;
    std::string parent;
    std::optional<unsigned> gpu_quota;
};
using TenantsByName = std::map<std::string, TenantKeys>;
using TenantRule = ConfigRule<TenantsByName>;

constexpr std::string_view kTenantTable = "scheduler.tenant.";
constexpr std::array kTenantRules{
    TenantRule{{"scheduler.tenant.NAME.weight", "a number above 0, at most 1000000", "of its share; default: 1"},
               [](TenantsByName& tenants, const std::string& name, const ConfigValue& value) {
                   double& weight = tenants[name].weight;
                   return set_config_number(weight, value, 0, 1e6) && weight > 0;
               }},
    TenantRule{{"scheduler.tenant.NAME.parent", "the name of a tenant, in text", "that it is a part of"},
               [](TenantsByName& tenants, const std::string& name, const ConfigValue& value) {
                   return set_config_text(tenants[name].parent, value);
               }},
    TenantRule{
        {"scheduler.tenant.NAME.gpu_quota", "a whole number, 0 to 1000000", "GPUs it may have at a time; default: all"},
        [](TenantsByName& tenants, const std::string& name, const ConfigValue& value) {
            return set_config_count(tenants[name].gpu_quota.emplace(), value, 0, 1'000'000);
        }},
};

}  // namespace

Result<std::vector<Tenant>> parse_tenants(std::string_view toml, std::string_view source) {
    const auto refuse = [&](const std::string& why) {
        return fail(ErrorCode::invalid_argument, std::string(source) + ": " + why);
    };
    const auto keys = keys_of(std::span<const TenantRule>(kTenantRules));
    const auto text = read_config_text(toml, source, keys, {});
    if (!text) return std::unexpected(text.error());
    TenantsByName by_name;
    for (const std::string& table : text->empty_tables) {
        if (table.starts_with(kTenantTable)) by_name[table.substr(kTenantTable.size())];
    }
    for (const ConfigSetting& setting : text->settings) {
        const auto applied = apply_setting(by_name, std::span<const TenantRule>(kTenantRules), setting);
        if (!applied) return std::unexpected(applied.error());
    }
    if (by_name.empty()) return refuse("there is no [scheduler.tenant.NAME]");
    std::vector<Tenant> tenants;
    for (const auto& [name, given] : by_name) {
        tenants.push_back({.name = name, .weight = given.weight, .gpu_quota = given.gpu_quota.value_or(kAnyGpuType)});
        if (given.parent.empty()) continue;
        const auto parent = by_name.find(given.parent);
        if (parent == by_name.end()) {
            return refuse("scheduler.tenant." + name + ".parent: there is no tenant \"" + given.parent + "\"");
        }
        tenants.back().parent = static_cast<std::uint32_t>(std::distance(by_name.begin(), parent));
    }
    for (const Tenant& tenant : tenants) {
        std::size_t above = 0;
        for (std::uint32_t at = tenant.parent; at != kNoTenant; at = tenants[at].parent) {
            if (++above > tenants.size()) return refuse("scheduler.tenant." + tenant.name + ".parent: it is its own");
        }
    }
    return tenants;
}

Result<std::vector<Tenant>> read_tenants(const std::string& path) {
    const auto content = read_file(path);
    if (!content) return std::unexpected(content.error().within("tenants"));
    return parse_tenants(*content, path);
}

}  // namespace larder::scheduler
