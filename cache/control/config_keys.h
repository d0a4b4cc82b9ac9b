#pragma once

// The table of every config key: what it is called, what it takes, and how it is put into a Config. Only config.cc and
// its tests include this.

#include <span>

#include "base/server/config_text.h"
#include "cache/control/config.h"

namespace larder::cache {

std::span<const ConfigRule<Config>> config_rules();

}  // namespace larder::cache
