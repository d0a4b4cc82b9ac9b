#pragma once

// Finds the storage account for az://, in the places where Azure's own command line and adlfs look, in this order:
//
// - the environment, unless a profile is named: AZURE_STORAGE_CONNECTION_STRING; or AZURE_STORAGE_ACCOUNT
//   (AZURE_STORAGE_ACCOUNT_NAME) with AZURE_STORAGE_KEY (AZURE_STORAGE_ACCOUNT_KEY) or AZURE_STORAGE_SAS_TOKEN;
// - the section of the profile, else [storage], in ~/.azure/config (AZURE_CONFIG_DIR), with the keys connection_string,
//   account, key and sas_token.
//
// Requests that are signed by the key, or carry a SAS, go to the account's own endpoint only, and to one that the
// connection string names (trusted_endpoint.h).

#include <string>
#include <string_view>

#include "base/error.h"
#include "cache/remote/remote_options.h"

namespace larder::cache {

struct AzureAccount {
    std::string name;
    std::string key;       // the shared key, decoded; empty: none
    std::string sas;       // a query, without "?"; empty: none. Not used if there is a key
    std::string endpoint;  // without a slash at its end
};

// Requests are signed, or carry a SAS, unless `options.unsigned_access`. Errors never quote a key, a SAS or a
// connection string.
Result<AzureAccount> find_azure_account(const RemoteOptions& options);

// Returns the fields of "Name=value;Name=value" in an account. Unknown names are left out.
Result<AzureAccount> parse_connection_string(std::string_view text);

}  // namespace larder::cache
