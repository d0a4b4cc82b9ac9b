#include "cache/remote/azure_account.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/environment.h"
#include "cache/remote/base64.h"
#include "cache/remote/profile_section.h"
#include "cache/remote/remote_url.h"
#include "cache/remote/trusted_endpoint.h"

namespace larder::cache {
namespace {

constexpr std::string_view kAzureDomain = ".blob.core.windows.net";
constexpr std::array<std::string_view, 3> kAzureDomains{kAzureDomain, ".blob.core.chinacloudapi.cn",
                                                        ".blob.core.usgovcloudapi.net"};

std::unexpected<Error> bad_azure(const std::string& what) {
    return fail(ErrorCode::invalid_argument, "Azure credentials: " + what);
}

Result<void> set_key(AzureAccount& account, std::string_view base64) {
    auto key = base64_decode(base64);
    if (!key) return bad_azure("the account's key is not base64");
    account.key = std::move(*key);
    return {};
}

Result<void> set_sas(AzureAccount& account, std::string_view sas) {
    if (sas.starts_with('?')) sas.remove_prefix(1);
    const auto of_query = [](char c) { return c > ' ' && c < '\x7f' && c != '#' && c != '?'; };
    if (!std::ranges::all_of(sas, of_query)) return bad_azure("the SAS token is not a query of a URL");
    account.sas = sas;
    return {};
}

// Returns what the environment and the profile say, in the words of ~/.azure/config.
ProfileSection settings_of_environment() {
    ProfileSection settings;
    const auto take = [&](const char* name, const char* variable) {
        std::string value = environment(variable);
        if (!value.empty()) settings.emplace(name, std::move(value));
    };
    take("connection_string", "AZURE_STORAGE_CONNECTION_STRING");
    take("account", "AZURE_STORAGE_ACCOUNT");
    take("account", "AZURE_STORAGE_ACCOUNT_NAME");
    take("key", "AZURE_STORAGE_KEY");
    take("key", "AZURE_STORAGE_ACCOUNT_KEY");
    take("sas_token", "AZURE_STORAGE_SAS_TOKEN");
    return settings;
}

Result<ProfileSection> find_settings(const RemoteOptions& options) {
    if (options.profile.empty()) {
        ProfileSection settings = settings_of_environment();
        if (!settings.empty()) return settings;
    }
    std::string directory = environment("AZURE_CONFIG_DIR");
    const std::string home = environment("HOME");
    if (directory.empty() && !home.empty()) directory = home + "/.azure";
    const std::string section = options.profile.empty() ? "storage" : options.profile;
    auto settings = read_profile_section(directory.empty() ? "" : directory + "/config", section);
    if (settings && settings->empty() && !options.profile.empty()) {
        return fail(ErrorCode::not_found, "Azure credentials: no section [" + options.profile + "] in ~/.azure/config");
    }
    return settings;
}

Result<AzureAccount> account_of(const ProfileSection& settings) {
    if (const std::string text = section_value(settings, "connection_string"); !text.empty()) {
        return parse_connection_string(text);
    }
    AzureAccount account{.name = section_value(settings, "account")};
    if (auto set = set_key(account, section_value(settings, "key")); !set) return std::unexpected(set.error());
    if (auto set = set_sas(account, section_value(settings, "sas_token")); !set) return std::unexpected(set.error());
    return account;
}

// An account is named in its host, so a name is a part of one.
bool is_account_name(std::string_view name) {
    const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
    return !name.empty() && name.size() <= 63 && std::ranges::all_of(name, allowed);
}

// True if the endpoint is the account's at Azure.
bool is_own_endpoint(const AzureAccount& account, std::string_view endpoint) {
    if (!is_account_name(account.name)) return false;  // a host of no name would stand for all accounts
    return std::ranges::any_of(kAzureDomains, [&](std::string_view domain) {
        const std::string host = account.name + std::string(domain);
        const std::array<std::string_view, 1> hosts{host};
        return is_endpoint_of(endpoint, hosts);
    });
}

}  // namespace

Result<AzureAccount> parse_connection_string(std::string_view text) {
    std::map<std::string, std::string, std::less<>> fields;
    while (!text.empty()) {
        const std::string_view field = text.substr(0, text.find(';'));
        text.remove_prefix(std::min(text.size(), field.size() + 1));
        const std::size_t equals = field.find('=');
        if (field.empty()) continue;
        if (equals == std::string_view::npos) return bad_azure("the connection string is not a list of NAME=VALUE;");
        fields.emplace(field.substr(0, equals), field.substr(equals + 1));
    }
    const auto field = [&](std::string_view name) {
        const auto found = fields.find(name);
        return found == fields.end() ? std::string() : found->second;
    };
    AzureAccount account{.name = field("AccountName"), .endpoint = field("BlobEndpoint")};
    if (auto set = set_key(account, field("AccountKey")); !set) return std::unexpected(set.error());
    if (auto set = set_sas(account, field("SharedAccessSignature")); !set) return std::unexpected(set.error());
    if (account.endpoint.empty() && is_account_name(account.name)) {
        const std::string protocol = field("DefaultEndpointsProtocol");
        const std::string suffix = field("EndpointSuffix");
        account.endpoint = (protocol.empty() ? "https" : protocol) + "://" + account.name +
                           (suffix.empty() ? std::string(kAzureDomain) : ".blob." + suffix);
    }
    return account;
}

Result<AzureAccount> find_azure_account(const RemoteOptions& options) {
    const auto settings = find_settings(options);
    if (!settings) return std::unexpected(settings.error());
    auto account = account_of(*settings);
    if (!account) return account;
    if (options.unsigned_access) {
        account->key.clear();
        account->sas.clear();
    } else if (account->key.empty() && account->sas.empty()) {
        return fail(ErrorCode::permission_denied,
                    "Azure credentials: neither a shared key nor a SAS token in the daemon's environment "
                    "(AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_STORAGE_CONNECTION_STRING) or in "
                    "~/.azure/config; a public container needs --unsigned");
    }
    if (!account->key.empty() && !is_account_name(account->name)) {
        return bad_azure("a shared key needs the name of its account: set AZURE_STORAGE_ACCOUNT");
    }
    if (!options.endpoint.empty()) {
        if (!options.unsigned_access && options.endpoint != account->endpoint &&
            !is_own_endpoint(*account, options.endpoint)) {
            return fail(ErrorCode::permission_denied,
                        "a request with a shared key or a SAS token of Azure is sent only to "
                        "https://ACCOUNT.blob.core.windows.net of its own account, and to the BlobEndpoint of "
                        "AZURE_STORAGE_CONNECTION_STRING in the daemon's environment, or of a profile's "
                        "connection_string: name the account in AZURE_STORAGE_ACCOUNT, or set BlobEndpoint");
        }
        account->endpoint = options.endpoint;
    }
    if (account->endpoint.empty()) {
        if (!is_account_name(account->name)) {
            return bad_azure(
                "no storage account is named: set AZURE_STORAGE_ACCOUNT, or give --endpoint "
                "https://ACCOUNT.blob.core.windows.net");
        }
        account->endpoint = "https://" + account->name + std::string(kAzureDomain);
    }
    if (auto checked = check_endpoint(account->endpoint); !checked) return std::unexpected(checked.error());
    while (account->endpoint.ends_with('/')) account->endpoint.pop_back();
    return account;
}

}  // namespace larder::cache
