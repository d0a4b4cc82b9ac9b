#pragma once

// The machines that run submitted jobs, as an engine sees them. They outlive the allocator: each start of the allocator
// makes a new Connection, which finds the attempts of the former one. Checks that no attempt begins twice, that a job
// has one attempt at a time, and that no GPU has two jobs.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/live/engine.h"
#include "tests/campaign/seeds/training.h"

namespace larder::campaign {

class Machines {
public:
    Machines(const Surroundings& around, std::map<std::string, std::unique_ptr<Program>>& programs)
        : around_(around), programs_(programs) {}

    // The allocator's engine; `machines` must outlive it.
    class Connection final : public scheduler::Engine {
    public:
        explicit Connection(Machines& machines) : machines_(machines) {}
        void start(const scheduler::EngineJob& job) override;
        void adopt(const scheduler::EngineJob& job) override;
        void stop(scheduler::JobId job, std::uint32_t attempt) override;
        std::vector<scheduler::AttemptName> list() const override;
        void stop_orphan(const scheduler::AttemptName& orphan) override {
            machines_.stop({orphan.job, orphan.attempt});
        }
        std::vector<scheduler::EngineEvent> poll() override;
        void forget(scheduler::JobId job) override;
        std::string output_of(scheduler::JobId, std::uint32_t) const override { return ""; }

    private:
        struct Watched {
            std::uint32_t attempt = 0;
            bool start_reported = false;
        };
        Machines& machines_;
        std::map<scheduler::JobId, Watched> watched_;
    };

    // Ends an attempt that runs, as a crash of its program does. False if none runs.
    bool crash_one();
    // All processes on the machine are gone.
    void lose_machine(int node);
    // A job that is on record as ended must not begin again.
    void ended(scheduler::JobId job) { ended_.insert(job); }
    // The name of the program that runs for a job.
    std::size_t running() const;
    std::vector<const Program*> running_programs() const;

private:
    enum class State : std::uint8_t { claimed, running, ended, lost };
    struct Attempt {
        State state = State::claimed;
        std::unique_ptr<Training> training;
        std::vector<scheduler::NamedGpus> gpus;
        std::string program;
        std::optional<int> exit_code;
        std::optional<int> exit_signal;
        bool began = false;
        bool was_stopping = false;
        bool told_to_stop = false;
    };
    using Key = std::pair<scheduler::JobId, std::uint32_t>;

    void start(const scheduler::EngineJob& job);
    void begin(const Key& key);
    void stop(const Key& key);
    void end(const Key& key, State state, std::optional<int> exit_code, std::optional<int> exit_signal);

    Surroundings around_;
    std::map<std::string, std::unique_ptr<Program>>& programs_;
    std::map<Key, Attempt> attempts_;
    std::set<scheduler::JobId> ended_;
};

}  // namespace larder::campaign
