#include "bench/plot.h"

#include "base/server/json_text.h"
#include "tools/cli/data_file.h"
#include "tools/cli/run_program.h"

namespace larder::bench {

namespace {

Result<void> draw(const char* script, const boost::json::array& results, const std::string& svg_path) {
    const auto drawn = cli::run_program({"/usr/bin/python3", cli::data_file(script), svg_path}, json_text(results));
    if (!drawn) return std::unexpected(drawn.error().within("draw " + svg_path));
    return {};
}

}  // namespace

Result<void> plot_curve(const boost::json::array& points, const std::string& svg_path) {
    return draw("bench/plot_curve.py", points, svg_path);
}

Result<void> plot_shared(const boost::json::array& points, const std::string& svg_path) {
    return draw("bench/plot_shared.py", points, svg_path);
}

Result<void> plot_joint(const boost::json::array& policies, const std::string& svg_path) {
    return draw("bench/plot_joint.py", policies, svg_path);
}

}  // namespace larder::bench
