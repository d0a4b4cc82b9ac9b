#pragma once

// The sum of several nodes' rates at every moment, also while they change. Each node is asked on a thread of its own,
// as often as possible. Between two answers, a node's rate was at least the lower of the two, so the sum of these is a
// lower bound of what all nodes could take at that moment: a bound above the remote's bandwidth is a violation, however
// short it was.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace larder::test {

// A node had the rate `rate` at some moment from `asked_ns` to `answered_ns`.
struct RateSample {
    std::int64_t asked_ns = 0;
    std::int64_t answered_ns = 0;
    double rate = 0;
};

// Returns the largest sum of the lower bounds at one moment. Samples are in the order of time, by node.
inline double largest_sum_of(const std::vector<std::vector<RateSample>>& nodes) {
    struct Change {
        std::int64_t at_ns;
        std::size_t node;
        bool begins;
        double rate;
    };
    std::vector<Change> changes;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
        const auto& samples = nodes[node];
        for (std::size_t i = 0; i + 1 < samples.size(); ++i) {
            const double rate = std::min(samples[i].rate, samples[i + 1].rate);
            changes.push_back({samples[i].asked_ns, node, true, rate});
            changes.push_back({samples[i + 1].answered_ns, node, false, rate});
        }
    }
    // Intervals are closed: at one time, those that begin come first.
    std::ranges::stable_sort(changes, [](const Change& a, const Change& b) {
        return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : a.begins && !b.begins;
    });
    std::vector<std::vector<double>> open(nodes.size());  // rates of the intervals that hold the moment, by node
    double largest = 0;
    for (const Change& change : changes) {
        auto& rates = open[change.node];
        if (change.begins) {
            rates.push_back(change.rate);
        } else {
            rates.erase(std::ranges::find(rates, change.rate));
        }
        double sum = 0;
        for (const auto& of_node : open) sum += of_node.empty() ? 0 : std::ranges::min(of_node);
        largest = std::max(largest, sum);
    }
    return largest;
}

class RateTimeline {
public:
    // `ask` returns a node's rate. It is called from `nodes` threads, each with its own node.
    RateTimeline(std::size_t nodes, std::function<double(std::size_t node)> ask) : samples_(nodes) {
        for (std::size_t node = 0; node < nodes; ++node) {
            threads_.emplace_back([this, node, ask](const std::stop_token& stop) {
                while (!stop.stop_requested()) {
                    const std::int64_t asked_ns = clock_.now_ns();
                    const double rate = ask(node);
                    const std::int64_t answered_ns = clock_.now_ns();
                    samples_[node].push_back({asked_ns, answered_ns, rate});
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
            });
        }
    }
    void stop() { threads_.clear(); }
    // Call them after stop().
    double largest_sum() const { return largest_sum_of(samples_); }
    // Returns how often a node's rate was seen to change.
    std::size_t changes() const {
        std::size_t count = 0;
        for (const auto& samples : samples_) {
            for (std::size_t i = 1; i < samples.size(); ++i) count += samples[i].rate != samples[i - 1].rate;
        }
        return count;
    }

private:
    SteadyClock clock_;
    std::vector<std::vector<RateSample>> samples_;  // each used by its own thread
    std::vector<std::jthread> threads_;
};

}  // namespace larder::test
