#include "tests/oracle/steady_optimum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <utility>

#include "tests/oracle/linear_program.h"

namespace larder::oracle {
namespace {

using allocator::ClusterDataset;
using allocator::ClusterJob;
using allocator::ClusterNode;
using allocator::ClusterState;
using allocator::GpuShare;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kSlack = 1e-6;  // relative, by which a job may be below its equal share

// One tier of one node, as a place for one dataset.
struct Place {
    std::uint32_t dataset = 0;
    std::uint32_t node = 0;
    bool on_disk = false;
    double most = 0;  // the largest part of the dataset that fits
};

// The cluster with its jobs' parts worked out. Jobs are indexed as in the state.
class Cluster {
public:
    explicit Cluster(const ClusterState& state) : state_(state) {
        for (const ClusterJob& job : state.jobs) {
            std::map<std::uint32_t, double> on_node, in_group;
            double gpus = 0;
            for (const GpuShare& share : job.placement) gpus += share.gpus;
            for (const GpuShare& share : job.placement) {
                on_node[share.node] += share.gpus / gpus;
                in_group[state.nodes[share.node].peer_group] += share.gpus / gpus;
            }
            runs_.push_back(std::move(on_node));
            groups_.push_back(std::move(in_group));
        }
    }

    const ClusterState& state() const { return state_; }
    std::size_t jobs() const { return state_.jobs.size(); }
    // Returns the part of a job's reads of cached blocks that hit. The first read of each block misses, because nothing
    // is cached yet.
    double gain(std::size_t job) const { return 1 - 1 / std::max(1.0, state_.jobs[job].remaining_epochs); }
    double ideal(std::size_t job) const { return state_.jobs[job].ideal_bytes_per_second; }
    double run(std::size_t job, std::uint32_t node) const { return part(runs_[job], node); }
    double part_of_group(std::size_t job, std::uint32_t group) const { return part(groups_[job], group); }
    double part_near(std::size_t job, std::uint32_t node) const {
        return part_of_group(job, state_.nodes[node].peer_group);
    }
    const std::map<std::uint32_t, double>& nodes_of(std::size_t job) const { return runs_[job]; }
    const std::map<std::uint32_t, double>& groups_of(std::size_t job) const { return groups_[job]; }
    double size(std::uint32_t dataset) const { return static_cast<double>(state_.datasets[dataset].size_bytes); }

    // True if the dataset may be cached in the group: a job reads it there, or there is no other group.
    bool has_place(std::uint32_t dataset, std::uint32_t group) const {
        for (std::size_t j = 0; j < jobs(); ++j) {
            if (state_.jobs[j].dataset == dataset && part_of_group(j, group) > 0) return true;
        }
        return std::ranges::all_of(state_.nodes, [&](const ClusterNode& node) { return node.peer_group == group; });
    }
    // Returns every tier of every node where a dataset may be cached.
    std::vector<Place> places() const {
        std::vector<Place> places;
        for (std::uint32_t d = 0; d < state_.datasets.size(); ++d) {
            for (std::uint32_t n = 0; n < state_.nodes.size(); ++n) {
                if (!has_place(d, state_.nodes[n].peer_group)) continue;
                for (const bool on_disk : {false, true}) {
                    const double most = std::min(1.0, room(n, on_disk) / size(d));
                    if (most > 0) places.push_back({.dataset = d, .node = n, .on_disk = on_disk, .most = most});
                }
            }
        }
        return places;
    }
    double room(std::uint32_t node, bool on_disk) const {
        const ClusterNode& at = state_.nodes[node];
        return static_cast<double>(on_disk ? at.disk_bytes : at.memory_bytes);
    }

private:
    static double part(const std::map<std::uint32_t, double>& parts, std::uint32_t key) {
        const auto found = parts.find(key);
        return found == parts.end() ? 0 : found->second;
    }

    const ClusterState& state_;
    std::vector<std::map<std::uint32_t, double>> runs_, groups_;
};

struct Box {
    std::vector<double> low, high;  // rates
};

struct Point {
    bool feasible = false;
    double value = 0;
    std::vector<double> rates;
    std::vector<double> columns;         // of the program; the parts of the places come first
    std::vector<double> product_errors;  // by job: the sum of |product - rate * part|
};

// The bytes per second that cross one resource: a sum over the jobs' rates and over the products.
struct Resource {
    double capacity = 0;
    std::vector<double> of_rates;     // by job
    std::vector<double> of_products;  // by product
};

// The rate of a job times the part of its dataset in a place.
struct Product {
    std::size_t job = 0;
    std::size_t place = 0;
};

// The linear programs of one cluster. Their columns are scaled: rates, bandwidths and products of a job by its f*,
// bytes by the largest dataset.
class Programs {
public:
    explicit Programs(const ClusterState& state) : cluster_(state), places_(cluster_.places()) {
        for (const ClusterDataset& dataset : state.datasets) {
            byte_scale_ = std::max(byte_scale_, static_cast<double>(dataset.size_bytes));
        }
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) {
            for (std::size_t k = 0; k < places_.size(); ++k) {
                const bool hits = cluster_.gain(j) > 0 && places_[k].dataset == state.jobs[j].dataset &&
                                  cluster_.part_near(j, places_[k].node) > 0;
                if (hits) products_.push_back({.job = j, .place = k});
            }
        }
        for (std::uint32_t n = 0; n < state.nodes.size(); ++n) add_resources_of(n);
    }

    const Cluster& cluster() const { return cluster_; }

    // Maximises the sum of values * rates over a box of rates, with products relaxed. In a box of one point they are
    // exact. Without values it only tells whether the box has a steady state.
    Point maximise(const Box& box, std::span<const double> values) const {
        Columns columns;
        Rows rows;
        const auto [first_rate, first_product] = build(box, values, columns, rows);
        Point point = solve(rows, columns, first_rate);
        if (!point.feasible) return point;
        point.product_errors.resize(cluster_.jobs());
        for (std::size_t i = 0; i < products_.size(); ++i) {
            const auto [job, place] = products_[i];
            const double product = point.columns[static_cast<std::size_t>(first_product) + i] * cluster_.ideal(job);
            point.product_errors[job] +=
                part_of(products_[i]) * std::abs(product - point.rates[job] * point.columns[place]);
        }
        return point;
    }

    // Returns the least remote bytes per second that jobs need if every job reads at its ideal, of the splits with
    // which the jobs can read at the rates of a box of one point. nullopt if there is none.
    std::optional<double> least_remote_at_ideals(const Box& box) const {
        Columns columns;
        Rows rows;
        build(box, {}, columns, rows);
        double unit = 0;
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) unit += cluster_.ideal(j);
        columns.value_unit = unit;
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) {
            const int needed = columns.count();
            columns.add(cluster_.state().jobs[j].bandwidth_floor_bytes_per_second / unit, kInfinite, -1);
            rows.add(needed, unit / cluster_.ideal(j));
            for (const Product& product : products_) {
                if (product.job == j) rows.add(static_cast<int>(product.place), hits_of(product));
            }
            rows.end(1, COIN_DBL_MAX);
        }
        const Point point = solve(rows, columns, static_cast<int>(places_.size()));
        if (!point.feasible) return std::nullopt;
        return -point.value;
    }

    // Maximises the sum of values * rates for the split of the cache that `split` has.
    Point rates_for(const Point& split, const Box& box, std::span<const double> values) const {
        Columns columns;
        const int first_bandwidth = add_rates(columns, box, values);
        Rows rows;
        for (const Resource& resource : resources_) {
            std::vector<double> of_rates = resource.of_rates;
            for (std::size_t i = 0; i < products_.size(); ++i) {
                of_rates[products_[i].job] += resource.of_products[i] * split.columns[products_[i].place];
            }
            const double unit = unit_of(resource);
            for (std::size_t j = 0; j < of_rates.size(); ++j) {
                rows.add(static_cast<int>(j), of_rates[j] * cluster_.ideal(j) / unit);
            }
            rows.end(-COIN_DBL_MAX, resource.capacity / unit);
        }
        add_remote_row(rows, first_bandwidth);
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) {
            double misses = 1;
            for (const Product& product : products_) {
                if (product.job == j) misses -= hits_of(product) * split.columns[product.place];
            }
            rows.add(static_cast<int>(j), -std::max(0.0, misses));
            rows.add(first_bandwidth + static_cast<int>(j), 1);
            rows.end(0, COIN_DBL_MAX);
        }
        return solve(rows, columns, 0);
    }

private:
    struct Columns {
        std::vector<double> lower, upper, cost;
        double value_unit = 1;

        void add(double low, double high, double value) {
            lower.push_back(low);
            upper.push_back(std::isfinite(high) ? high : COIN_DBL_MAX);
            cost.push_back(-value);
        }
        int count() const { return static_cast<int>(lower.size()); }
    };

    // Adds all columns and rows of the program. Returns the first columns of rates and of products.
    std::pair<int, int> build(const Box& box, std::span<const double> values, Columns& columns, Rows& rows) const {
        for (const Place& place : places_) columns.add(0, place.most, 0);
        const int first_rate = columns.count();
        const int first_bandwidth = add_rates(columns, box, values);
        const int first_product = columns.count();
        for (std::size_t i = 0; i < products_.size(); ++i) columns.add(0, kInfinite, 0);

        add_cache_rows(rows);
        for (const Resource& resource : resources_) {
            const double unit = unit_of(resource);
            for (std::size_t j = 0; j < cluster_.jobs(); ++j) {
                const double load = resource.of_rates[j] * cluster_.ideal(j) / unit;
                if (load != 0) rows.add(first_rate + static_cast<int>(j), load);
            }
            for (std::size_t i = 0; i < products_.size(); ++i) {
                const double load = resource.of_products[i] * cluster_.ideal(products_[i].job) / unit;
                if (load != 0) rows.add(first_product + static_cast<int>(i), load);
            }
            rows.end(-COIN_DBL_MAX, resource.capacity / unit);
        }
        add_remote_row(rows, first_bandwidth);
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) {
            rows.add(first_bandwidth + static_cast<int>(j), 1);
            rows.add(first_rate + static_cast<int>(j), -1);
            for (std::size_t i = 0; i < products_.size(); ++i) {
                if (products_[i].job == j) rows.add(first_product + static_cast<int>(i), hits_of(products_[i]));
            }
            rows.end(0, COIN_DBL_MAX);
        }
        // Hits of one group are at most what the job reads there.
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) {
            for (const auto& [group, part] : cluster_.groups_of(j)) {
                rows.add(first_rate + static_cast<int>(j), -1);
                for (std::size_t i = 0; i < products_.size(); ++i) {
                    if (products_[i].job == j && group_of(products_[i]) == group) {
                        rows.add(first_product + static_cast<int>(i), 1);
                    }
                }
                rows.end(-COIN_DBL_MAX, 0);
            }
        }
        for (std::size_t i = 0; i < products_.size(); ++i) {
            const auto [job, place] = products_[i];
            const double low = box.low[job] / cluster_.ideal(job);
            const double high = box.high[job] / cluster_.ideal(job);
            const double most = places_[place].most;
            const auto bound = [&](double times_part, double times_rate, double least, double highest) {
                rows.add(first_product + static_cast<int>(i), 1);
                rows.add(static_cast<int>(place), -times_part);
                if (times_rate != 0) rows.add(first_rate + static_cast<int>(job), -times_rate);
                rows.end(least, highest);
            };
            bound(low, 0, 0, COIN_DBL_MAX);
            bound(high, most, -high * most, COIN_DBL_MAX);
            bound(high, 0, -COIN_DBL_MAX, 0);
            bound(low, most, -COIN_DBL_MAX, -low * most);
        }
        return {first_rate, first_product};
    }

    // Returns the part of the job's bytes that it reads from the place once the whole dataset is cached there.
    double part_of(const Product& product) const {
        return cluster_.part_near(product.job, places_[product.place].node);
    }
    // Returns the part of the job's bytes that hit in the place until it ends.
    double hits_of(const Product& product) const { return part_of(product) * cluster_.gain(product.job); }
    std::uint32_t group_of(const Product& product) const {
        return cluster_.state().nodes[places_[product.place].node].peer_group;
    }

    void add_resources_of(std::uint32_t n) {
        const ClusterNode& node = cluster_.state().nodes[n];
        Resource disk{.capacity = node.disk_read_bytes_per_second}, in{.capacity = node.nic_bytes_per_second};
        for (Resource* resource : {&disk, &in}) {
            resource->of_rates.resize(cluster_.jobs());
            resource->of_products.resize(products_.size());
        }
        Resource out = in;
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) in.of_rates[j] = cluster_.run(j, n);
        for (std::size_t i = 0; i < products_.size(); ++i) {
            const Place& place = places_[products_[i].place];
            if (place.node != n) continue;
            const double run = cluster_.run(products_[i].job, n);
            in.of_products[i] = -run * cluster_.gain(products_[i].job);
            out.of_products[i] = part_of(products_[i]) - run;
            if (place.on_disk) disk.of_products[i] = part_of(products_[i]);
        }
        for (Resource* resource : {&disk, &in, &out}) {
            if (std::isfinite(resource->capacity)) resources_.push_back(std::move(*resource));
        }
    }

    // Returns the largest load that one job or one product puts on the resource, so that a row's numbers are near 1.
    double unit_of(const Resource& resource) const {
        double unit = 1;
        for (std::size_t j = 0; j < cluster_.jobs(); ++j)
            unit = std::max(unit, resource.of_rates[j] * cluster_.ideal(j));
        for (std::size_t i = 0; i < products_.size(); ++i) {
            unit = std::max(unit, resource.of_products[i] * cluster_.ideal(products_[i].job));
        }
        return unit;
    }

    // Adds the columns of rates, then those of bandwidths. Returns the first of these.
    int add_rates(Columns& columns, const Box& box, std::span<const double> values) const {
        double unit = 1e-300;
        for (std::size_t j = 0; j < values.size(); ++j) unit = std::max(unit, values[j] * cluster_.ideal(j));
        columns.value_unit = unit;
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) {
            const double ideal = cluster_.ideal(j);
            columns.add(box.low[j] / ideal, box.high[j] / ideal, values.empty() ? 0 : values[j] * ideal / unit);
        }
        const int first_bandwidth = columns.count();
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) {
            const ClusterJob& job = cluster_.state().jobs[j];
            columns.add(job.bandwidth_floor_bytes_per_second / cluster_.ideal(j),
                        job.bandwidth_cap_bytes_per_second / cluster_.ideal(j), 0);
        }
        return first_bandwidth;
    }

    void add_remote_row(Rows& rows, int first_bandwidth) const {
        double unit = 0;
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) unit = std::max(unit, cluster_.ideal(j));
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) {
            rows.add(first_bandwidth + static_cast<int>(j), cluster_.ideal(j) / unit);
        }
        rows.end(-COIN_DBL_MAX, cluster_.state().remote_bytes_per_second / unit);
    }

    // The room of each tier; a dataset at most once in each group; the operator's caps and floors.
    void add_cache_rows(Rows& rows) const {
        const ClusterState& state = cluster_.state();
        const auto add_row = [&](auto&& counts, auto&& factor, double least, double most) {
            for (std::size_t k = 0; k < places_.size(); ++k) {
                if (counts(places_[k])) rows.add(static_cast<int>(k), factor(places_[k]));
            }
            rows.end(least, most);
        };
        const auto bytes = [&](const Place& place) { return cluster_.size(place.dataset) / byte_scale_; };
        const auto once = [](const Place&) { return 1.0; };
        std::map<std::uint32_t, double> room_of_group;
        for (std::uint32_t n = 0; n < state.nodes.size(); ++n) {
            for (const bool on_disk : {false, true}) {
                add_row([&](const Place& place) { return place.node == n && place.on_disk == on_disk; }, bytes,
                        -COIN_DBL_MAX, cluster_.room(n, on_disk) / byte_scale_);
                room_of_group[state.nodes[n].peer_group] += cluster_.room(n, on_disk);
            }
        }
        for (std::uint32_t d = 0; d < state.datasets.size(); ++d) {
            double fits = 0;
            for (const auto& [group, room] : room_of_group) {
                const auto in_group = [&](const Place& place) {
                    return place.dataset == d && state.nodes[place.node].peer_group == group;
                };
                if (std::ranges::none_of(places_, in_group)) continue;
                add_row(in_group, once, -COIN_DBL_MAX, 1);
                fits += std::min(cluster_.size(d), room);
            }
            const ClusterDataset& dataset = state.datasets[d];
            const double cap = std::min(static_cast<double>(dataset.quota_cap_bytes), fits);
            const double floor = std::min(static_cast<double>(dataset.quota_floor_bytes), cap);
            if (fits <= 0) continue;
            add_row([&](const Place& place) { return place.dataset == d; }, bytes, floor * (1 - kSlack) / byte_scale_,
                    cap / byte_scale_);
        }
    }

    Point solve(const Rows& rows, const Columns& columns, int first_rate) const {
        ClpSimplex model;
        rows.load_into(model, columns.lower, columns.upper, columns.cost);
        model.initialSolve();
        Point point{.feasible = model.isProvenOptimal()};
        if (!point.feasible) return point;
        point.value = -model.objectiveValue() * columns.value_unit;
        const double* solution = model.primalColumnSolution();
        point.columns.assign(solution, solution + columns.count());
        point.rates.reserve(cluster_.jobs());
        for (std::size_t j = 0; j < cluster_.jobs(); ++j) {
            point.rates.push_back(point.columns[static_cast<std::size_t>(first_rate) + j] * cluster_.ideal(j));
        }
        return point;
    }

    Cluster cluster_;
    std::vector<Place> places_;
    std::vector<Product> products_;
    std::vector<Resource> resources_;
    double byte_scale_ = 1;
};

// Returns the largest hit ratio of the job if it had the cache of its groups for itself.
double highest_hit_ratio(const Cluster& cluster, std::size_t job) {
    const ClusterState& state = cluster.state();
    const ClusterDataset& dataset = state.datasets[state.jobs[job].dataset];
    const double size = static_cast<double>(dataset.size_bytes);
    double hits = 0;
    double cap_left = std::min(1e18, static_cast<double>(dataset.quota_cap_bytes));
    // The groups where most of the job runs come first.
    std::vector<std::pair<double, double>> groups;  // part of the job, room
    for (const auto& [group, part] : cluster.groups_of(job)) {
        double room = 0;
        for (std::uint32_t n = 0; n < state.nodes.size(); ++n) {
            if (state.nodes[n].peer_group == group) room += cluster.room(n, false) + cluster.room(n, true);
        }
        groups.emplace_back(part, room);
    }
    std::ranges::sort(groups, std::ranges::greater{});
    for (const auto& [part, room] : groups) {
        const double bytes = std::min({room, size, cap_left});
        hits += part * bytes / size;
        cap_left -= bytes;
    }
    return std::min(1.0, hits) * cluster.gain(job);
}

}  // namespace

std::vector<double> equal_share_rates(const ClusterState& state) {
    const Cluster cluster(state);
    std::map<std::uint32_t, double> jobs_of_group, room_of_group;
    for (std::uint32_t n = 0; n < state.nodes.size(); ++n) {
        room_of_group[state.nodes[n].peer_group] += cluster.room(n, false) + cluster.room(n, true);
    }
    for (std::size_t j = 0; j < cluster.jobs(); ++j) {
        for (const auto& [group, part] : cluster.groups_of(j)) jobs_of_group[group] += part;
    }
    // Floors take their room first; what they leave is divided by readers.
    const auto readers_of = [&](std::uint32_t dataset, std::uint32_t group) {
        double readers = 0;
        for (std::size_t j = 0; j < cluster.jobs(); ++j) {
            if (state.jobs[j].dataset == dataset) readers += cluster.part_of_group(j, group);
        }
        return readers;
    };
    std::map<std::uint32_t, double> left = room_of_group;
    std::map<std::pair<std::uint32_t, std::uint32_t>, double> floors, caps;
    for (std::uint32_t d = 0; d < state.datasets.size(); ++d) {
        for (const auto& [group, room] : room_of_group) {
            if (!cluster.has_place(d, group)) continue;
            const double cap =
                std::min({cluster.size(d), room, static_cast<double>(state.datasets[d].quota_cap_bytes)});
            caps[{d, group}] = cap;
            floors[{d, group}] = std::min(cap, static_cast<double>(state.datasets[d].quota_floor_bytes));
            left[group] -= floors[{d, group}];
        }
    }
    double bandwidth_left = state.remote_bytes_per_second;
    for (const ClusterJob& job : state.jobs) bandwidth_left -= job.bandwidth_floor_bytes_per_second;
    std::vector<double> rates;
    rates.reserve(cluster.jobs());
    for (std::size_t j = 0; j < cluster.jobs(); ++j) {
        const ClusterJob& job = state.jobs[j];
        std::map<std::uint32_t, double> hits_in_group;  // for each byte that the job reads anywhere
        double hits = 0;
        for (const auto& [group, part] : cluster.groups_of(j)) {
            const std::pair key{job.dataset, group};
            const double share = std::max(0.0, left[group]) * readers_of(job.dataset, group) / jobs_of_group[group];
            const double bytes = std::min(caps[key], floors[key] + share);
            hits_in_group[group] = part * bytes / cluster.size(job.dataset);
            hits += hits_in_group[group] * cluster.gain(j);
        }
        const double bandwidth = std::min(
            job.bandwidth_cap_bytes_per_second,
            job.bandwidth_floor_bytes_per_second + std::max(0.0, bandwidth_left) / static_cast<double>(cluster.jobs()));
        double rate = std::min(cluster.ideal(j), hits < 1 ? bandwidth / (1 - hits) : kInfinite);
        for (std::uint32_t n = 0; n < state.nodes.size(); ++n) {
            const ClusterNode& node = state.nodes[n];
            const double room = cluster.room(n, false) + cluster.room(n, true);
            const double group_room = room_of_group[node.peer_group];
            double jobs_here = 0, parts_here = 0;
            for (std::size_t i = 0; i < cluster.jobs(); ++i) {
                jobs_here += cluster.run(i, n) > 0 ? 1 : 0;
                parts_here += cluster.run(i, n);
            }
            const double run = cluster.run(j, n);
            if (run > 0) rate = std::min(rate, node.nic_bytes_per_second / jobs_here / run);
            const double near = cluster.part_near(j, n);
            if (near <= 0 || cluster.gain(j) <= 0 || room <= 0) continue;
            // Loads and shares are both in proportion to the part of the job that uses the node.
            const double hits_here = hits_in_group[node.peer_group] / near * room / group_room;
            const double from_disk = hits_here * cluster.room(n, true) / room;
            if (from_disk > 0) {
                rate = std::min(rate, node.disk_read_bytes_per_second / jobs_of_group[node.peer_group] / from_disk);
            }
            const double parts_elsewhere = jobs_of_group[node.peer_group] - parts_here;
            if (near > run && parts_elsewhere > 0 && hits_here > 0) {
                rate = std::min(rate, node.nic_bytes_per_second / parts_elsewhere / hits_here);
            }
        }
        rates.push_back(rate);
    }
    return rates;
}

LargestSum largest_sum_of_rates(const ClusterState& state, std::span<const double> values, double known,
                                const SearchLimits& limits) {
    const Programs programs(state);
    Box whole{.low = equal_share_rates(state), .high = {}};
    whole.high.reserve(whole.low.size());
    for (std::size_t j = 0; j < whole.low.size(); ++j) {
        whole.high.push_back(programs.cluster().ideal(j));
        whole.low[j] *= 1 - kSlack;
    }
    struct Node {
        double bound = 0;
        Box box;
        Point relaxed;
        bool operator<(const Node& other) const { return bound < other.bound; }
    };
    LargestSum sum{.reached = known, .bound = known};
    std::priority_queue<Node> open;
    const auto look_at = [&](const Box& box) {
        ++sum.programs;
        Point relaxed = programs.maximise(box, values);
        if (sum.programs == 1) sum.relaxed = relaxed.feasible ? relaxed.value : 0;
        if (!relaxed.feasible || relaxed.value <= sum.reached * (1 + limits.gap)) {
            if (relaxed.feasible) sum.bound = std::max(sum.bound, relaxed.value);
            return;
        }
        ++sum.programs;
        const Point found = programs.rates_for(relaxed, whole, values);
        if (found.feasible) sum.reached = std::max(sum.reached, found.value);
        open.push({.bound = relaxed.value, .box = box, .relaxed = std::move(relaxed)});
    };
    look_at(whole);
    while (!open.empty() && open.top().bound > sum.reached * (1 + limits.gap) && sum.programs < limits.programs) {
        const Node node = open.top();
        open.pop();
        const auto worst = std::ranges::max_element(node.relaxed.product_errors);
        const auto job = static_cast<std::size_t>(worst - node.relaxed.product_errors.begin());
        const double low = node.box.low[job], high = node.box.high[job];
        // Halfway between the middle and the program's own rate, and never at an end.
        const double middle = (low + high) / 2;
        const double at =
            std::clamp((middle + node.relaxed.rates[job]) / 2, low + 0.1 * (high - low), high - 0.1 * (high - low));
        Box below = node.box, above = node.box;
        below.high[job] = at;
        above.low[job] = at;
        look_at(below);
        look_at(above);
    }
    if (!open.empty()) sum.bound = std::max(sum.bound, open.top().bound);
    sum.bound = std::max(sum.bound, sum.reached);
    return sum;
}

std::vector<double> highest_rates(const ClusterState& state) {
    const Cluster cluster(state);
    std::vector<double> rates;
    rates.reserve(cluster.jobs());
    for (std::size_t j = 0; j < cluster.jobs(); ++j) {
        const double misses = 1 - highest_hit_ratio(cluster, j);
        const double cap = state.jobs[j].bandwidth_cap_bytes_per_second;
        rates.push_back(misses > 0 ? std::min(cluster.ideal(j), cap / misses) : cluster.ideal(j));
    }
    return rates;
}

double largest_saving(const ClusterState& state) {
    const Programs programs(state);
    std::vector<double> equal = equal_share_rates(state);
    double without_cache = 0;
    for (std::size_t j = 0; j < equal.size(); ++j) {
        equal[j] *= 1 - kSlack;
        without_cache += std::max(programs.cluster().ideal(j), state.jobs[j].bandwidth_floor_bytes_per_second);
    }
    return without_cache - programs.least_remote_at_ideals({.low = equal, .high = equal}).value_or(without_cache);
}

double level_of(const ClusterState& state, std::span<const double> rates) {
    constexpr double kTolerance = 1e-5;  // within which the programs' values are exact
    const std::vector<double> equal = equal_share_rates(state);
    const std::vector<double> highest = highest_rates(state);
    double level = kInfinite;
    for (std::size_t j = 0; j < equal.size(); ++j) {
        if (equal[j] <= 0 || rates[j] >= highest[j] * (1 - kTolerance)) continue;
        level = std::min(level, rates[j] / (state.jobs[j].weight * equal[j]));
    }
    return level;
}

double largest_level(const ClusterState& state) {
    const Programs programs(state);
    const std::vector<double> equal = equal_share_rates(state);
    const std::vector<double> highest = highest_rates(state);
    const auto fits = [&](double level) {
        std::vector<double> rates;
        rates.reserve(equal.size());
        for (std::size_t j = 0; j < equal.size(); ++j) {
            const double wanted = std::max(1.0, level * state.jobs[j].weight) * equal[j];
            rates.push_back(std::min(wanted, highest[j]) * (1 - kSlack));
        }
        return programs.maximise({.low = rates, .high = rates}, {}).feasible;
    };
    double most = 0;
    for (std::size_t j = 0; j < equal.size(); ++j) {
        if (equal[j] > 0) most = std::max(most, highest[j] / (state.jobs[j].weight * equal[j]));
    }
    if (fits(most)) return most;
    double low = 0, high = most;
    while (high - low > 5e-4 * high) {
        const double middle = low <= 0 ? high / 2 : std::sqrt(low * high);
        (fits(middle) ? low : high) = middle;
        if (high < 1e-9) return 0;
    }
    return low;
}

}  // namespace larder::oracle
