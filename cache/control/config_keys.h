#pragma once

// The table of all config keys: each key's name, allowed values, and setter into a DaemonConfig. Only daemon_config.cc
// and its tests include this.

#include <span>

#include "base/server/config_text.h"
#include "cache/control/daemon_config.h"

namespace larder::cache {

std::span<const ConfigRule<DaemonConfig>> config_rules();

}  // namespace larder::cache
