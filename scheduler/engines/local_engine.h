#pragma once

// Runs jobs as processes of this machine. Each attempt has a runner (runner.h) and a directory of files
// (attempt_files.h). The engine writes what to run, spawns the runner in its own session, and from then on only
// watches. No state of an attempt is in memory alone, so an engine in a later process finds the attempt by its files.
// Nodes of the cluster are parts of this machine's GPUs: GPU i of a node is device `first_gpu` + i in
// CUDA_VISIBLE_DEVICES.

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/engines/attempt_files.h"
#include "scheduler/live/engine.h"

namespace larder::scheduler {

struct LocalEngineOptions {
    // Has a directory per queue, with one per job; made if missing. Jobs with numbers below `first` are from versions
    // without queue identities, and have their directories directly in this one.
    std::string directory;
    std::string queue;                           // the identity of the queue whose jobs it runs
    JobId first = 1;                             // number of the first job in the queue's own directory
    std::string runner;                          // path of the program larder-runner
    std::map<std::string, unsigned> first_gpus;  // first device of each node
    std::string group_parent;                    // where attempts' control groups are made; empty: they have none
    std::string warning;                         // for Engine::warning()
};

class LocalEngine final : public Engine {
public:
    // Fails if the directory cannot be made, or the runner cannot be executed.
    static Result<std::unique_ptr<LocalEngine>> open(LocalEngineOptions options);

    void start(const EngineJob& job) override;
    void adopt(const EngineJob& job) override;
    void stop(JobId job, std::uint32_t attempt) override;
    // Finds the attempts by their files. Jobs that were started before queues had identities
    // belong to this engine's queue.
    std::vector<AttemptName> list() const override;
    void stop_orphan(const AttemptName& orphan) override;
    std::vector<EngineEvent> poll() override;
    void forget(JobId job) override;
    std::string output_of(JobId job, std::uint32_t attempt) const override;
    std::string warning() const override { return options_.warning; }

private:
    struct Watched {
        std::uint32_t attempt = 0;
        pid_t runner = 0;  // our child, not yet waited for; 0: none
        bool start_reported = false;
        std::string start_error;  // why it could not be started; empty: no such failure
    };

    explicit LocalEngine(LocalEngineOptions options) : options_(std::move(options)) {}
    std::string directory_of(JobId job) const;
    AttemptFiles files_of(JobId job, std::uint32_t attempt) const;
    AttemptFiles files_of(const AttemptName& attempt) const;
    // Asks an attempt to end. One that has not begun will never begin.
    static void ask_to_end(const AttemptFiles& files);
    std::string devices_of(const EngineJob& job) const;
    Result<pid_t> spawn(const AttemptFiles& files) const;
    // Returns the event that ended the attempt, if there is one. Adds the event of its start to `events`.
    std::optional<EngineEvent> check_attempt(JobId job, Watched& watched, std::vector<EngineEvent>& events) const;

    LocalEngineOptions options_;
    std::map<JobId, Watched> watched_;
    std::vector<pid_t> to_reap_;
};

}  // namespace larder::scheduler
