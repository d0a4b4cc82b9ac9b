#pragma once

// The allocator and its scheduler as one simulated process: Cluster, AllocatorApi and LiveScheduler, ticked as the
// daemon ticks them. Their state is kept as the rows that the real stores write (state_rows.h, scheduler/live/json.h):
// the rows of the cluster survive the process once they are saved, but no power cut; settings, floors and the queue
// survive both once their write has ended.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/service/allocator_api.h"
#include "allocator/service/state_rows.h"
#include "scheduler/live/live_scheduler.h"
#include "tests/campaign/seeds/simulated_engine.h"

namespace larder::campaign {

struct ControllerOptions {
    allocator::ClusterOptions cluster;
    scheduler::GpuCluster gpus;
    std::string policy = "fifo";
};

struct ControllerFaults {
    double save_error = 0;  // the chance that a row cannot be saved
    std::int64_t write_delay_max_ns = 30 * kMillisecond_ns;
};

class Controller {
public:
    Controller(const ControllerOptions& options, const Surroundings& around, Machines& machines);
    ~Controller();

    void start();
    void kill();
    // The machine starts again with the rows that had reached the disk.
    void cut_power();
    void freeze(std::int64_t for_ns);

    bool up() const { return cluster_ != nullptr; }
    bool frozen() const { return around_.events.now_ns() < frozen_until_ns_; }
    bool answers() const { return up() && !frozen(); }
    // Handles a request now, or when the machine runs again.
    void ask(const HttpRequest& request, const std::function<void(const HttpResponse&)>& respond);
    // `acknowledged`: the job is on record.
    void submit(const scheduler::Submission& job, std::function<void(scheduler::JobId)> acknowledged);
    void cancel(scheduler::JobId job, std::function<void()> acknowledged);

    // The present bandwidth of the remote, and the highest in any lease that may still hold.
    double bandwidth() const;
    const allocator::Cluster* cluster() const { return cluster_.get(); }
    // The phase on record.
    std::optional<scheduler::Phase> recorded_phase(scheduler::JobId job) const;
    std::string end_reason(scheduler::JobId job) const;
    std::size_t unfinished() const;

    ControllerFaults faults;

private:
    struct Write {
        std::vector<Row> rows;
        std::map<std::string, std::string>* into = nullptr;
        std::function<void(Result<void>)> done;
    };
    class Ticks;

    std::int64_t now_ns() const { return clock_.now_ns(); }
    scheduler::Moment moment() const;
    void when_awake(std::function<void()> run);
    void after(std::int64_t delay_ns, std::function<void()> run);
    void tick();
    void end_process();
    allocator::ClusterRecord begin_run();
    Result<void> save(const allocator::ClusterRecord& change);
    void save_queue(const scheduler::LiveRecord& change, scheduler::LiveScheduler::Done saved);
    void write(std::vector<Row> rows, std::map<std::string, std::string>& into, std::function<void(Result<void>)> done);
    static void put(const std::vector<Row>& rows, std::map<std::string, std::string>& into);
    void check_recorded(const Row& row);
    scheduler::LiveRecord read_queue() const;

    ControllerOptions options_;
    Surroundings around_;
    Machines& machines_;
    MachineClock clock_;
    std::int64_t frozen_until_ns_ = 0;
    std::deque<std::function<void()>> deferred_;
    std::uint64_t instances_ = 0;
    std::uint64_t boots_ = 1;
    std::uint64_t last_job_ = 0;

    // On disk.
    std::map<std::string, std::string> cluster_rows_;
    std::map<std::string, std::string> cluster_rows_on_disk_;  // what a power cut leaves
    std::map<std::string, std::string> settings_rows_;
    std::map<std::string, std::string> queue_rows_;
    bool rows_are_new_ = true;
    std::map<scheduler::JobId, scheduler::Phase> recorded_;
    std::map<scheduler::JobId, std::string> end_reasons_;
    std::deque<Write> writes_;
    std::int64_t last_write_ns_ = 0;

    std::deque<std::pair<std::int64_t, double>> bandwidths_;

    // This process:
    std::unique_ptr<allocator::Cluster> cluster_;
    std::unique_ptr<allocator::AllocatorApi> api_;
    std::unique_ptr<Machines::Connection> engine_;
    std::unique_ptr<scheduler::LiveScheduler> live_;
    std::unique_ptr<Ticks> ticks_;
};

}  // namespace larder::campaign
