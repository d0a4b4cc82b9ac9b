#include "scheduler/simulator/tenants.h"

#include "base/file.h"
#include "scheduler/tenant_config.h"

namespace larder::scheduler {

Result<std::vector<Tenant>> parse_tenants(std::string_view toml, std::string_view source) {
    const auto text = read_config_text(toml, source, keys_of(tenant_rules()), {});
    if (!text) return std::unexpected(text.error());
    TenantConfigs by_name;
    add_bare_tenants(by_name, text->empty_tables);
    for (const ConfigSetting& setting : text->settings) {
        if (auto applied = apply_setting(by_name, tenant_rules(), setting); !applied) {
            return std::unexpected(applied.error());
        }
    }
    if (by_name.empty()) {
        return fail(ErrorCode::invalid_argument, std::string(source) + ": there is no [scheduler.tenant.NAME]");
    }
    auto tenants = tenants_of(by_name);
    if (!tenants) return std::unexpected(tenants.error().within(std::string(source)));
    return tenants;
}

Result<std::vector<Tenant>> read_tenants(const std::string& path) {
    const auto content = read_file(path);
    if (!content) return std::unexpected(content.error().within("tenants"));
    return parse_tenants(*content, path);
}

}  // namespace larder::scheduler
