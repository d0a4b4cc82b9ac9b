#pragma once

// Drawing of results as SVG, by Matplotlib (bench/plot_*.py) in a Python process.

#include <boost/json/array.hpp>

#include <string>

#include "base/error.h"

namespace larder::bench {

Result<void> plot_curve(const boost::json::array& points, const std::string& svg_path);
Result<void> plot_shared(const boost::json::array& points, const std::string& svg_path);
Result<void> plot_joint(const boost::json::array& policies, const std::string& svg_path);

}  // namespace larder::bench
