#pragma once

// A training job: its program, whose position is saved at checkpoints, and one run of it on some nodes. The ranks of a
// run read the loader's order (loader/epoch_order.h, loader/deal.h), make steps together, and check every byte and that
// an epoch has every sample once. A run resumes the last checkpoint with any number of ranks.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "loader/deal.h"
#include "loader/epoch_order.h"
#include "tests/campaign/seeds/simulated_node.h"

namespace larder::campaign {

// The state that outlives the runs of a job.
struct Program {
    std::string name;
    std::uint32_t uid = 1000;
    std::size_t dataset = 0;
    std::uint64_t epochs = 1;  // to do
    std::uint32_t batch = 4;
    std::uint32_t window = 8;
    std::int64_t step_ns = 0;  // computing; may change
    std::uint64_t seed = 0;
    bool ends_soon = false;  // it ends with the step that it makes

    // The last checkpoint.
    std::vector<std::byte> state;  // empty: none
    std::vector<bool> seen;        // samples of the epoch
    std::size_t edition = 0;
    std::uint64_t epochs_done = 0;

    std::uint32_t runs_now = 0;
    std::uint64_t steps = 0;
    std::int64_t progressed_ns = 0;
    bool done = false;  // a run has ended with success
};

class Training {
public:
    // `nodes`: of each rank. Calls `ended` once, with an exit code, unless it is destroyed before.
    Training(const Surroundings& around, Program& program, std::vector<int> nodes, std::function<void(int)> ended);
    ~Training();
    Training(const Training&) = delete;
    Training& operator=(const Training&) = delete;

    const Program& program() const { return program_; }
    bool runs_on(int node) const;

private:
    static constexpr std::uint64_t kAhead = 3;  // batches that a rank has fetched or is fetching
    static constexpr std::int64_t kRetry_ns = 500 * kMillisecond_ns;
    static constexpr std::int64_t kWatch_ns = 2 * kSecond_ns;

    class Layout final : public detail::SampleLayout {
    public:
        explicit Layout(std::uint32_t samples) : samples_(samples) {}
        std::uint32_t block_count() const override { return samples_; }
        std::uint64_t sample_count() const override { return samples_; }
        detail::SampleRun samples_of(std::uint32_t block) const override { return {.first = block, .count = 1}; }
        bool one_sample_per_block() const override { return true; }

    private:
        std::uint32_t samples_;
    };
    struct Item {
        std::uint32_t sample = 0;
        std::uint32_t slot = 0;
        bool asked = false;
        bool ready = false;
        std::optional<protocol::Completion> in_slot;  // checked again when it is used
    };
    struct Batch {
        std::uint64_t index = 0;
        std::vector<Item> items;
    };
    struct Rank {
        SimulatedNode* node = nullptr;
        std::uint64_t instance = 0;
        std::unique_ptr<Client> client;
        std::unique_ptr<detail::EpochOrder> order;
        std::uint64_t batches = 0;     // of this dealing
        std::uint64_t next_batch = 0;  // to fetch
        std::deque<Batch> ahead;
        std::vector<std::uint32_t> free_slots;
        std::int64_t waits_since_ns = 0;  // by simulated time; 0: computes
        std::uint64_t busy_ns = 0;
        std::uint64_t stall_ns = 0;
        std::uint64_t bytes = 0;
        std::uint64_t samples = 0;
    };

    template <typename Run>
    void after(std::int64_t delay_ns, Run run) {
        around_.events.after(delay_ns, [alive = std::weak_ptr(alive_), run = std::move(run)] {
            if (!alive.expired()) run();
        });
    }
    void fail(const std::string& what) { around_.events.fail("job " + program_.name + ": " + what); }
    const Edition& edition() const { return *around_.datasets[program_.dataset]->editions()[edition_]; }
    bool resume();
    // Begins an epoch on the newest edition that all nodes have.
    void begin_epoch();
    void deal();
    void attach(Rank& rank);
    void lose_session(Rank& rank);
    void watch();
    void fetch_ahead(Rank& rank);
    void ask(Rank& rank, Item& item);
    void take_completions(Rank& rank);
    void take_completion(Rank& rank, const protocol::Completion& completion);
    void publish(Rank& rank);
    void try_step();
    void finish_step();
    void save();
    void end(int exit_code);

    Surroundings around_;
    Program& program_;
    std::function<void(int)> ended_;
    std::shared_ptr<int> alive_ = std::make_shared<int>(0);
    std::deque<Rank> ranks_;
    std::uint32_t slot_pages_;
    Layout layout_;
    std::uint64_t epoch_ = 0;
    std::size_t edition_ = 0;
    std::vector<detail::DealLevel> history_;
    std::unique_ptr<detail::Dealer> dealer_;
    std::vector<bool> seen_;
    std::uint64_t step_ = 0;   // within this dealing
    std::uint64_t steps_ = 0;  // of the dealing
    bool computing_ = false;
    bool edition_is_gone_ = false;
    bool over_ = false;
};

}  // namespace larder::campaign
