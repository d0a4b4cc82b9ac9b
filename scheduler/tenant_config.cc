#include "scheduler/tenant_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>

#include "base/server/config_values.h"

namespace larder::scheduler {
namespace {

using TenantRule = ConfigRule<TenantConfigs>;

constexpr int kPriorityMax = 1'000'000;
constexpr std::string_view kTenantTable = "scheduler.tenant.";
// Reads names such as "alice, ci-vision". An empty text means nobody.
bool set_names(std::optional<std::vector<std::string>>& into, const ConfigValue& value) {
    const std::string* text = config_text_of(value);
    if (text == nullptr) return false;
    into.emplace();
    for (std::size_t at = 0; at < text->size();) {
        const std::size_t comma = std::min(text->find(',', at), text->size());
        std::string name = text->substr(at, comma - at);
        name.erase(0, name.find_first_not_of(' '));
        name.erase(name.find_last_not_of(' ') + 1);
        if (name.empty()) return false;
        into->push_back(std::move(name));
        at = comma + 1;
    }
    return true;
}

bool set_priority(std::optional<std::int32_t>& into, const ConfigValue& value) {
    double priority = 0;
    if (!set_config_number<-kPriorityMax, kPriorityMax>(priority, value) || priority != std::trunc(priority))
        return false;
    into = static_cast<std::int32_t>(priority);
    return true;
}

constexpr std::array kTenantRules{
    TenantRule{{"scheduler.tenant.NAME.weight", "a number above 0, at most 1000000",
                "weight of the tenant's share; default: 1"},
               [](TenantConfigs& tenants, const std::string& name, const ConfigValue& value) {
                   double& weight = tenants[name].weight;
                   return set_config_number<0, 1'000'000>(weight, value) && weight > 0;
               }},
    TenantRule{{"scheduler.tenant.NAME.parent", "the name of a tenant, in text", "tenant that this tenant is part of"},
               [](TenantConfigs& tenants, const std::string& name, const ConfigValue& value) {
                   return set_config_text(tenants[name].parent, value);
               }},
    TenantRule{{"scheduler.tenant.NAME.gpu_quota", "a whole number, 0 to 1000000",
                "most GPUs of the tenant at a time; default: all"},
               [](TenantConfigs& tenants, const std::string& name, const ConfigValue& value) {
                   return set_config_count<0, 1'000'000>(tenants[name].gpu_quota.emplace(), value);
               }},
    TenantRule{{"scheduler.tenant.NAME.submitters", "names such as \"alice, ci-vision\", in text",
                "who may submit for the tenant, beside operators: users of this machine, by name or uid, and names of "
                "tokens or certificates; default: everyone who may submit"},
               [](TenantConfigs& tenants, const std::string& name, const ConfigValue& value) {
                   return set_names(tenants[name].submitters, value);
               }},
    TenantRule{{"scheduler.tenant.NAME.priority_max", "a whole number, -1000000 to 1000000",
                "highest priority of the tenant's jobs, unless an operator submits; default: any"},
               [](TenantConfigs& tenants, const std::string& name, const ConfigValue& value) {
                   return set_priority(tenants[name].priority_max, value);
               }},
    TenantRule{{"scheduler.tenant.NAME.weight_max", "a number above 0, at most 1000000",
                "highest weight of one of the tenant's jobs, unless an operator submits; default: that of its parent, "
                "else 1"},
               [](TenantConfigs& tenants, const std::string& name, const ConfigValue& value) {
                   double& weight = tenants[name].weight_max.emplace();
                   return set_config_number<0, 1'000'000>(weight, value) && weight > 0;
               }},
};

std::unexpected<Error> bad_parent(const std::string& tenant, const std::string& why) {
    return fail(ErrorCode::invalid_argument, std::string(kTenantTable) + tenant + ".parent: " + why);
}

}  // namespace

std::span<const ConfigRule<TenantConfigs>> tenant_rules() {
    return kTenantRules;
}

void add_bare_tenants(TenantConfigs& tenants, std::span<const std::string> empty_tables) {
    for (const std::string& table : empty_tables) {
        if (table.starts_with(kTenantTable)) tenants.try_emplace(table.substr(kTenantTable.size()));
    }
}

Result<std::vector<Tenant>> tenants_of(const TenantConfigs& configs) {
    std::vector<Tenant> tenants;
    tenants.reserve(configs.size());
    for (const auto& [name, config] : configs) {
        tenants.push_back({.name = name, .weight = config.weight, .gpu_quota = config.gpu_quota.value_or(kAllGpus)});
        if (config.parent.empty()) continue;
        const auto parent = configs.find(config.parent);
        if (parent == configs.end()) return bad_parent(name, "there is no tenant \"" + config.parent + "\"");
        tenants.back().parent = static_cast<std::uint32_t>(std::distance(configs.begin(), parent));
    }
    for (const Tenant& tenant : tenants) {
        std::size_t above = 0;
        for (std::uint32_t at = tenant.parent; at != kNoTenant; at = tenants[at].parent) {
            if (++above > tenants.size()) return bad_parent(tenant.name, "the tenant is part of itself");
        }
    }
    return tenants;
}

}  // namespace larder::scheduler
