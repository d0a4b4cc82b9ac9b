#pragma once

// The OAuth token for gs://, from where Google's own clients take credentials, in this order:
//
// - the service account's file that GOOGLE_APPLICATION_CREDENTIALS names, unless a profile is named;
// - NAME.json of the profile, else application_default_credentials.json, in gcloud's directory (CLOUDSDK_CONFIG,
//   ~/.config/gcloud);
// - the machine's metadata service (169.254.169.254, or GCE_METADATA_HOST), unless NO_GCE_CHECK is true.
//
// The token is renewed before it expires (renewed_value.h); a file is read at each renewal, because its key may have
// been replaced.

#include <memory>
#include <string>

#include "base/error.h"
#include "cache/remote/remote_options.h"
#include "cache/remote/renewed_value.h"

namespace larder::cache {

using GoogleToken = RenewedValue<std::string>;

// Blocks for at most two seconds. The error lists the places searched.
Result<std::shared_ptr<const GoogleToken>> find_google_token(const RemoteOptions& options);

}  // namespace larder::cache
