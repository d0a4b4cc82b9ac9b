#pragma once

// The threads of the data plane, and the control plane's calls to them. A ShardThread runs a Shard on a thread of its
// own, which also makes the device: `post` never waits for the shard, `call` waits and returns the result. ShardThreads
// are all those of a node; they answer with sums of the shards' statistics.

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache/shard/shard.h"

namespace boost::asio {
class io_context;
}

namespace larder::cache {

class ShardThread {
public:
    // Starts the thread and waits until its device is made. Keeps the device's `why_not_ring` for the log.
    static Result<std::unique_ptr<ShardThread>> start(DeviceKind kind, ShardOptions options, const std::string& name);
    // Drains for at most two seconds, and waits for the device as Device::stop does. Joins, unless a disk does not
    // answer: then the kernel keeps the thread until the process ends, or the disk answers.
    ~ShardThread();

    // Any thread. Runs `work` on the shard's thread, in order of posting.
    void post(std::function<void(Shard&)> work);

    // Any thread. Each makes the Shard's call of the same name there, in order of posting.
    void set_quota(std::uint64_t dataset_id, Quota quota);
    void add_version(std::uint64_t dataset_id, std::shared_ptr<const protocol::Manifest> manifest);
    void attach(SessionSetup setup);
    void slots_populated(std::uint64_t session_id, std::uint64_t bytes, bool settled);

    // Any thread but the shard's. Runs `work` there and waits for its result.
    template <typename Work>
    auto call(Work work) -> std::invoke_result_t<Work, Shard&> {
        using WorkResult = std::invoke_result_t<Work, Shard&>;
        std::packaged_task<WorkResult(Shard&)> task(std::move(work));
        std::future<WorkResult> result = task.get_future();
        auto shared = std::make_shared<std::packaged_task<WorkResult(Shard&)>>(std::move(task));
        post([shared](Shard& shard) { (*shared)(shard); });
        return result.get();
    }

    const std::string& device_kind() const { return device_kind_; }
    const std::string& why_not_ring() const { return why_not_ring_; }

private:
    ShardThread() = default;
    void run(DeviceKind kind, ShardOptions options, std::promise<Result<void>>& started, std::promise<bool> done);

    SteadyClock clock_;
    FileDescriptor wake_;
    std::mutex mutex_;
    std::vector<std::function<void(Shard&)>> posted_;
    bool stopping_ = false;
    std::string device_kind_;
    std::string why_not_ring_;
    std::future<bool> done_;  // the thread uses nothing of this object any more; true: it ends at once
    std::thread thread_;
};

// Control thread only.
class ShardThreads {
public:
    struct Options {
        DeviceKind device = DeviceKind::automatic;
        unsigned count = 1;
        ShardOptions shard;
    };
    // `control` is the control thread's, and must outlive the ShardThreads.
    static Result<std::unique_ptr<ShardThreads>> start(const Options& options, boost::asio::io_context& control);
    ~ShardThreads();

    const std::vector<std::unique_ptr<ShardThread>>& all() const { return threads_; }
    const std::string& device_kind() const { return threads_.front()->device_kind(); }
    const std::string& why_not_ring() const { return threads_.front()->why_not_ring(); }

    // Wakes all shards.
    void wake();
    // Sums the statistics of all shards, and calls `done` on the control thread. Fails if a shard does not answer
    // within two seconds.
    void collect(std::function<void(Result<ShardStatistics>)> done);
    // Fails overdue answers. Call it about once a second.
    void fail_overdue();

private:
    struct Gathering;
    explicit ShardThreads(boost::asio::io_context& control) : control_(control) {}

    boost::asio::io_context& control_;
    SteadyClock clock_;
    std::vector<std::shared_ptr<Gathering>> gatherings_;
    std::vector<std::unique_ptr<ShardThread>> threads_;
};

}  // namespace larder::cache
