#include "bench/plot.h"

#include <boost/json/serialize.hpp>

#include "bench/process.h"
#include "bench/scripts.h"

namespace larder::bench {

Result<void> plot_curve(const boost::json::array& points, const std::string& svg_path) {
    const auto drawn =
        run_program({"/usr/bin/python3", script_path("plot_curve.py"), svg_path}, boost::json::serialize(points));
    if (!drawn) return std::unexpected(drawn.error().within("draw " + svg_path));
    return {};
}

}  // namespace larder::bench
