#pragma once

// The network between the machines of a simulation: messages are delayed, lost, doubled and overtaken, and machines may
// be cut off from each other.

#include <functional>
#include <set>
#include <utility>

#include "tests/campaign/seeds/event_queue.h"

namespace larder::campaign {

inline constexpr int kAllocatorMachine = -1;

struct NetworkFaults {
    std::int64_t delay_max_ns = 2 * kMillisecond_ns;
    double lost = 0;
    double doubled = 0;
    double late = 0;         // the chance that a message takes up to eight seconds
    double wrong_block = 0;  // the chance that a block from a peer has a wrong bit
};

class Network {
public:
    Network(Events& events, WorldRandom& random, const NetworkFaults& faults)
        : events_(events), random_(random), faults_(faults) {}

    void send(int from, int to, const std::function<void()>& arrive) {
        if (cuts_.contains(std::minmax(from, to)) || random_.chance(faults_.lost)) return;
        const int copies = random_.chance(faults_.doubled) ? 2 : 1;
        for (int i = 0; i < copies; ++i) {
            std::int64_t delay_ns = random_.between(100'000, faults_.delay_max_ns);
            if (random_.chance(faults_.late)) delay_ns += random_.between(0, 8 * kSecond_ns);
            events_.after(delay_ns, arrive);
        }
    }
    void cut(int a, int b) { cuts_.insert(std::minmax(a, b)); }
    void heal(int a, int b) { cuts_.erase(std::minmax(a, b)); }
    void heal_all() { cuts_.clear(); }

private:
    Events& events_;
    WorldRandom& random_;
    const NetworkFaults& faults_;
    std::set<std::pair<int, int>> cuts_;
};

}  // namespace larder::campaign
