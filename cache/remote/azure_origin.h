#pragma once

// Azure Blob Storage: a container of a storage account. Requests are signed by the account's shared key, or carry a SAS
// token in their query. The token is added when a request is sent, and appears in no message.

#include "base/error.h"
#include "cache/remote/http_remote.h"
#include "cache/remote/remote_options.h"
#include "cache/remote/remote_url.h"

namespace larder::cache {

// `url` is an az:// URL.
Result<HttpRoot> make_azure_root(const RemoteUrl& url, const RemoteOptions& options);

}  // namespace larder::cache
