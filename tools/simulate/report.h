#pragma once

// A simulation's results for people and programs: a list of figures, JSON, CSV files, and drawings.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <string>

#include "base/units.h"
#include "scheduler/simulator/scenario.h"

namespace larder::cli {

boost::json::object summary_json(const scheduler::ScenarioReport& report, const scheduler::ScenarioOptions& options);
// Says how many jobs of a summary were rejected, and why, as a line; "" if none was.
std::string rejected_text(const boost::json::object& summary);
// Returns the family of units for all sizes of a simulation: that of the cache's size, or decimal without a cache.
UnitFamily size_family(double cache_bytes);
void print_summary(const scheduler::ScenarioReport& report, const scheduler::ScenarioOptions& options);
// Fails if the file cannot be written. Called before a simulation that may take hours.
Result<void> check_writable(const std::string& path);
// Write a row per job, and a row per sample.
Result<void> write_jobs_csv(const scheduler::ScenarioReport& report, const std::string& path);
Result<void> write_timeline_csv(const scheduler::ScenarioReport& report, const std::string& path);
// Draws three files in `directory`: jct.svg, utilisation.svg, datasets.svg.
Result<void> plot(const scheduler::ScenarioReport& report, const scheduler::ScenarioOptions& options,
                  const std::string& directory);
// Draws the rows of `compare`: completion times and GPU utilisation, cluster by cluster.
Result<void> plot_comparison(const boost::json::array& rows, const std::string& trace, const std::string& svg_path);
// Formats a time: "2d 03h", "3h 20m", "45.0 s".
std::string time_text(double seconds);

}  // namespace larder::cli
