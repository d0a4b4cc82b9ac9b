#include "allocator/quota_program.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "allocator/cache_split.h"
#include "allocator/linear_program.h"

namespace larder::allocator {
namespace {

using Quotas = std::vector<std::vector<NodeCache>>;

constexpr std::size_t kJobsMax = 16;
constexpr std::size_t kPlacesMax = 64;
constexpr double kLittle = 1e-6;  // of an objective: decides only between what is equally good else
constexpr double kNoBound = LinearProgram::kNoBound;

// A tier of a node, as a place for one dataset. Its column in a program is the part of the dataset that lies there.
struct TierPlace {
    std::uint32_t cache = 0;  // in Problem::caches
    std::uint32_t node = 0;
    bool on_disk = false;
    double size = 0;        // of the dataset
    double held_bytes = 0;  // by an operator
    bool is_held = false;
};

std::uint64_t tier_bytes(const auto& node, bool on_disk) {
    return on_disk ? node.disk_bytes : node.memory_bytes;
}

std::vector<TierPlace> places_of(const ClusterState& state, const Problem& problem) {
    std::vector<TierPlace> places;
    for (std::uint32_t i = 0; i < problem.caches.size(); ++i) {
        const GroupCache& cache = problem.caches[i];
        const ClusterDataset& dataset = state.datasets[cache.dataset];
        for (const std::uint32_t n : problem.nodes_in_order) {
            if (problem.group_of_node[n] != cache.group) continue;
            const auto held = std::ranges::find(dataset.held, n, &NodeCache::node);
            for (const bool on_disk : {false, true}) {
                if (tier_bytes(state.nodes[n], on_disk) == 0) continue;
                TierPlace place{.cache = i, .node = n, .on_disk = on_disk, .size = cache.size};
                if (held != dataset.held.end()) {
                    place.is_held = true;
                    place.held_bytes = static_cast<double>(tier_bytes(*held, on_disk));
                }
                places.push_back(place);
            }
        }
    }
    return places;
}

// A sum of factors times columns of parts.
struct PartSum {
    std::vector<std::pair<int, double>> terms;  // column, factor

    void add(int column, double factor) {
        if (factor != 0) terms.emplace_back(column, factor);
    }
    double value(std::span<const double> columns) const {
        double sum = 0;
        for (const auto& [column, factor] : terms) sum += factor * columns[static_cast<std::size_t>(column)];
        return sum;
    }
};

// The columns of places come first, then each cache's part that is cached already and stays, then rates, then
// bandwidths. Rates and bandwidths of a job are relative to its ideal.
class QuotaProgram {
public:
    QuotaProgram(const ClusterState& state, const Problem& problem)
        : state_(state), problem_(problem), places_(places_of(state, problem)) {}

    // Finds rates between `low` and `high`, and parts that differ from `columns` by at most `reach`. A product of both
    // is linear around `rates` and `columns`, so it is exact if `low` and `high` are `rates`. `maximises`: the largest
    // sum of value * rate, else the least remote bandwidth.
    std::optional<Quotas> solve(std::span<const double> rates, std::span<const double> columns,
                                std::span<const double> low, std::span<const double> high, double reach,
                                bool maximises) {
        LinearProgram program;
        add_columns(program, columns, low, high, reach, maximises);
        add_cache_rows(program);
        add_remote_rows(program, rates, columns);
        for (const std::uint32_t n : problem_.nodes_in_order) add_node_rows(program, n, rates, columns);
        const auto solution = program.minimise();
        if (!solution) return std::nullopt;
        return quotas_of(*solution);
    }

    // Returns the columns of places and kept parts for these quotas.
    std::vector<double> columns_of(const Quotas& quotas) const {
        std::vector<double> columns(places_.size() + problem_.caches.size());
        for (std::size_t p = 0; p < places_.size(); ++p) {
            const TierPlace& place = places_[p];
            for (const NodeCache& quota : quotas[problem_.caches[place.cache].dataset]) {
                if (quota.node != place.node) continue;
                columns[p] = static_cast<double>(tier_bytes(quota, place.on_disk)) / place.size;
            }
        }
        const CacheSplit split = split_of(problem_, quotas);
        for (std::size_t i = 0; i < split.size(); ++i) {
            columns[places_.size() + i] = problem_.caches[i].part(split[i]).kept;
        }
        return columns;
    }
    std::size_t part_columns() const { return places_.size() + problem_.caches.size(); }

private:
    double part_read(std::size_t job, std::uint32_t cache) const {
        for (const Read& read : problem_.reads_of(job)) {
            if (read.cache == cache) return read.part;
        }
        return 0;
    }
    double part_run(std::size_t job, std::uint32_t node) const {
        for (const JobRun& run : problem_.runs_of(job)) {
            if (run.node == node) return run.part;
        }
        return 0;
    }
    int kept_column(std::uint32_t cache) const { return static_cast<int>(places_.size() + cache); }
    int rate_column(std::size_t job) const { return static_cast<int>(part_columns() + job); }
    int bandwidth_column(std::size_t job) const { return rate_column(problem_.jobs.size()) + static_cast<int>(job); }

    void add_columns(LinearProgram& program, std::span<const double> columns, std::span<const double> low,
                     std::span<const double> high, double reach, bool maximises) const {
        for (std::size_t p = 0; p < places_.size(); ++p) {
            const TierPlace& place = places_[p];
            if (place.is_held) {
                program.add_column(place.held_bytes / place.size, place.held_bytes / place.size);
            } else {
                const auto room = static_cast<double>(tier_bytes(state_.nodes[place.node], place.on_disk));
                // A step errs to more load where both cache and rates grow: of equally good quotas, the smallest.
                program.add_column(std::max(0.0, columns[p] - reach),
                                   std::min({1.0, room / place.size, columns[p] + reach}), maximises ? kLittle : 0);
            }
        }
        for (const GroupCache& cache : problem_.caches) program.add_column(0, hit_ratio(cache.cached, cache.size));
        double value_unit = 0;
        for (std::size_t j = 0; j < problem_.jobs.size(); ++j) {
            value_unit = std::max(value_unit, problem_.jobs[j].value * problem_.ideals[j]);
        }
        for (std::size_t j = 0; j < problem_.jobs.size(); ++j) {
            const double ideal = problem_.ideals[j];
            const double value = maximises ? problem_.jobs[j].value * ideal / value_unit : 0;
            program.add_column(low[j] / ideal, high[j] / ideal, -value);
        }
        for (std::size_t j = 0; j < problem_.jobs.size(); ++j) {
            const double ideal = problem_.ideals[j];
            program.add_column(problem_.bandwidth_floors[j] / ideal, problem_.bandwidth_caps[j] / ideal,
                               maximises ? 0 : ideal / remote_unit());
        }
    }

    double remote_unit() const { return std::max(1.0, problem_.remote); }

    // The room of each tier, and the limits and kept parts of each cache.
    void add_cache_rows(LinearProgram& program) const {
        for (const std::uint32_t n : problem_.nodes_in_order) {
            for (const bool on_disk : {false, true}) {
                const auto room = static_cast<double>(tier_bytes(state_.nodes[n], on_disk));
                if (room <= 0) continue;
                for (std::size_t p = 0; p < places_.size(); ++p) {
                    if (places_[p].node != n || places_[p].on_disk != on_disk) continue;
                    program.add(static_cast<int>(p), places_[p].size / room);
                }
                program.end_row(-kNoBound, 1);
            }
        }
        for (std::uint32_t i = 0; i < problem_.caches.size(); ++i) {
            const GroupCache& cache = problem_.caches[i];
            const auto add_places = [&](double factor) {
                for (std::size_t p = 0; p < places_.size(); ++p) {
                    if (places_[p].cache == i) program.add(static_cast<int>(p), factor);
                }
            };
            add_places(1);
            program.end_row(cache.floor / cache.size, cache.cap / cache.size);
            program.add(kept_column(i), 1);
            add_places(-1);
            program.end_row(-kNoBound, 0);
        }
    }

    // Adds rate * (constant + sum), where the rate and the sum are near their present values.
    void add_product(LinearProgram& program, std::size_t job, double constant, const PartSum& sum,
                     std::span<const double> rates, std::span<const double> columns, double unit,
                     double& constant_part) const {
        const double rate = rates[job];
        const double now = sum.value(columns);
        program.add(rate_column(job), (constant + now) * problem_.ideals[job] / unit);
        for (const auto& [column, factor] : sum.terms) program.add(column, rate * factor / unit);
        constant_part -= rate * now / unit;
    }

    // Returns the job's hit ratio.
    PartSum hits_of(std::size_t job) const {
        PartSum hits;
        const double added = problem_.gains_of_added[job];
        for (const Read& read : problem_.reads_of(job)) {
            for (std::size_t p = 0; p < places_.size(); ++p) {
                if (places_[p].cache == read.cache) hits.add(static_cast<int>(p), read.part * added);
            }
            hits.add(kept_column(read.cache), read.part * (problem_.gains_of_kept[job] - added));
        }
        return hits;
    }

    void add_remote_rows(LinearProgram& program, std::span<const double> rates, std::span<const double> columns) const {
        for (std::size_t j = 0; j < problem_.jobs.size(); ++j) {
            program.add(bandwidth_column(j), problem_.ideals[j] / remote_unit());
        }
        program.end_row(-kNoBound, problem_.remote / remote_unit());
        for (std::size_t j = 0; j < problem_.jobs.size(); ++j) {
            double constant_part = 0;
            PartSum misses = hits_of(j);
            for (auto& [column, factor] : misses.terms) factor = -factor;
            add_product(program, j, 1, misses, rates, columns, problem_.ideals[j], constant_part);
            program.add(bandwidth_column(j), -1);
            program.end_row(-kNoBound, -constant_part);
        }
    }

    void add_node_rows(LinearProgram& program, std::uint32_t n, std::span<const double> rates,
                       std::span<const double> columns) const {
        const ClusterNode& node = state_.nodes[n];
        const auto add_row = [&](double capacity, auto&& load_of) {
            if (std::isinf(capacity)) return;
            const double unit = std::max(1.0, capacity);
            double constant_part = 0;
            for (std::size_t j = 0; j < problem_.jobs.size(); ++j) {
                PartSum sum;
                const double constant = load_of(j, sum);
                add_product(program, j, constant, sum, rates, columns, unit, constant_part);
            }
            program.end_row(-kNoBound, capacity / unit - constant_part);
        };
        const auto add_places = [&](std::size_t job, PartSum& sum, bool disk_only, auto&& factor_of) {
            for (std::size_t p = 0; p < places_.size(); ++p) {
                const TierPlace& place = places_[p];
                if (place.node != n || (disk_only && !place.on_disk)) continue;
                const double read = part_read(job, place.cache);
                if (read > 0) sum.add(static_cast<int>(p), factor_of(read));
            }
        };
        add_row(node.disk_read_bytes_per_second, [&](std::size_t j, PartSum& sum) {
            add_places(j, sum, true, [&](double read) { return read * problem_.gains_once_filled[j]; });
            return 0.0;
        });
        add_row(node.nic_bytes_per_second, [&](std::size_t j, PartSum& sum) {
            add_places(j, sum, false,
                       [&](double read) { return (read - part_run(j, n)) * problem_.gains_once_filled[j]; });
            return 0.0;
        });
        add_row(node.nic_bytes_per_second, [&](std::size_t j, PartSum& sum) {
            const double run = part_run(j, n);
            const double average = average_gain(j, columns);
            add_places(j, sum, false, [&](double) { return -run * average; });
            return run;
        });
    }

    // Returns the part of its reads of what is cached that hit, at the present quotas.
    double average_gain(std::size_t job, std::span<const double> columns) const {
        double cached = 0;
        for (const Read& read : problem_.reads_of(job)) {
            for (std::size_t p = 0; p < places_.size(); ++p) {
                if (places_[p].cache == read.cache) cached += read.part * columns[p];
            }
        }
        return cached > 0 ? hits_of(job).value(columns) / cached : problem_.gains_of_added[job];
    }

    // Held quotas come first, then the caches that have floors, so that rounding takes no byte from these.
    Quotas quotas_of(std::span<const double> columns) const {
        Quotas quotas(state_.datasets.size());
        for (std::size_t p = 0; p < places_.size(); ++p) {
            if (places_[p].is_held) place(p, places_[p].held_bytes, quotas);
        }
        for (const bool has_floor : {true, false}) {
            for (std::size_t p = 0; p < places_.size(); ++p) {
                const bool is_now = (problem_.caches[places_[p].cache].floor > 0) == has_floor;
                if (is_now && !places_[p].is_held) place(p, columns[p] * places_[p].size, quotas);
            }
            restore_floors(state_, problem_, quotas);
        }
        return quotas;
    }

    // Adds about these bytes to the quota of a place, within its node's room and its cache's cap. They are rounded, so
    // that what is to be cached whole is cached whole.
    void place(std::size_t p, double bytes, Quotas& quotas) const {
        const TierPlace& at = places_[p];
        const GroupCache& cache = problem_.caches[at.cache];
        std::uint64_t room = tier_bytes(state_.nodes[at.node], at.on_disk);
        double left = cache.cap;
        for (std::uint32_t d = 0; d < quotas.size(); ++d) {
            for (const NodeCache& quota : quotas[d]) {
                if (quota.node == at.node) room -= std::min(room, tier_bytes(quota, at.on_disk));
                if (d == cache.dataset && problem_.group_of_node[quota.node] == cache.group) {
                    left -= static_cast<double>(quota.bytes());
                }
            }
        }
        auto whole = static_cast<std::uint64_t>(std::llround(std::max(0.0, bytes)));
        if (!at.is_held) whole = std::min(whole, static_cast<std::uint64_t>(std::max(0.0, left)));
        whole = std::min(whole, room);
        if (whole == 0) return;
        NodeCache& quota = quota_on(quotas[cache.dataset], at.node);
        (at.on_disk ? quota.disk_bytes : quota.memory_bytes) += whole;
    }

    const ClusterState& state_;
    const Problem& problem_;
    std::vector<TierPlace> places_;
};

}  // namespace

bool has_small_programs(const ClusterState& state, const Problem& problem) {
    if (problem.jobs.empty() || problem.jobs.size() > kJobsMax) return false;
    const bool all_read = std::ranges::all_of(problem.ideals, [](double ideal) { return ideal > 0; });
    return all_read && places_of(state, problem).size() <= kPlacesMax;
}

std::optional<Quotas> quotas_that_carry(const ClusterState& state, const Problem& problem,
                                        std::span<const double> rates) {
    QuotaProgram program(state, problem);
    const std::vector<double> none(program.part_columns());
    return program.solve(rates, none, rates, rates, 1, false);
}

std::optional<Quotas> quotas_a_step_from(const ClusterState& state, const Problem& problem, const Quotas& quotas,
                                         std::span<const double> rates, double reach) {
    QuotaProgram program(state, problem);
    std::vector<double> low, high;
    low.reserve(rates.size());
    high.reserve(rates.size());
    for (std::size_t j = 0; j < rates.size(); ++j) {
        const double ideal = problem.ideals[j];
        const double least = std::min(problem.equal_rates[j] * (1 - 1e-7), ideal);
        high.push_back(std::clamp(rates[j] + reach * ideal, least, ideal));
        low.push_back(std::clamp(rates[j] - reach * ideal, least, high.back()));
    }
    return program.solve(rates, program.columns_of(quotas), low, high, reach, true);
}

}  // namespace larder::allocator
