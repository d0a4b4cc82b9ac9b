#pragma once

// The one place that initialises libcurl, which HttpClient here and the data plane's transfers use.

#include "base/error.h"

namespace larder {

// Initialises libcurl, once for the process. Call it before making a handle of libcurl. Any thread.
Result<void> init_libcurl();

}  // namespace larder
