#include "cache/shard/shard_thread.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/server/logging.h"

namespace larder::cache {
namespace {

constexpr std::int64_t kTurn_ns = 1'000'000'000;
constexpr std::int64_t kDrain_ns = 2'000'000'000;
constexpr std::int64_t kAnswerWithin_ns = 2'000'000'000;

// Watches the eventfd through which other threads wake the shard, for as long as the shard runs.
struct WakeWatch {
    Operation operation;
    Device* device = nullptr;
    int fd = -1;

    void start() {
        operation.done = [](Operation& done, std::int32_t result) noexcept {
            auto& self = reinterpret_cast<WakeWatch&>(done);
            if (result == -ECANCELED) return;
            std::uint64_t count = 0;
            [[maybe_unused]] const ssize_t got = ::read(self.fd, &count, sizeof count);
            self.device->watch(self.fd, self.operation);
        };
        static_assert(offsetof(WakeWatch, operation) == 0);
        device->watch(fd, operation);
    }
};

}  // namespace

Result<std::unique_ptr<ShardThread>> ShardThread::start(DeviceKind kind, ShardOptions options,
                                                        const std::string& name) {
    std::unique_ptr<ShardThread> self(new ShardThread);
    self->wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!self->wake_) return fail_errno(errno, "eventfd for " + name);
    std::promise<Result<void>> started;
    std::promise<bool> done;
    self->done_ = done.get_future();
    self->thread_ = std::thread([&started, kind, options, raw = self.get(), done = std::move(done)]() mutable {
        raw->run(kind, options, started, std::move(done));
    });
    pthread_setname_np(self->thread_.native_handle(), name.substr(0, 15).c_str());
    const Result<void> result = started.get_future().get();
    if (!result) {
        self->thread_.join();
        return std::unexpected(result.error().within(name));
    }
    return self;
}

ShardThread::~ShardThread() {
    if (!thread_.joinable()) return;
    post([this](Shard& shard) {
        shard.stop(clock_.now_ns() + kDrain_ns);
        stopping_ = true;
    });
    if (done_.get()) {
        thread_.join();
    } else {
        log_warn("a disk or a mount does not answer; its reads and writes are left behind");
        thread_.detach();
    }
}

void ShardThread::post(std::function<void(Shard&)> work) {
    {
        const std::lock_guard lock(mutex_);
        posted_.push_back(std::move(work));
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void ShardThread::set_quota(std::uint64_t dataset_id, Quota quota) {
    post([=](Shard& shard) { shard.set_quota(dataset_id, quota); });
}

void ShardThread::add_version(std::uint64_t dataset_id, std::shared_ptr<const protocol::Manifest> manifest) {
    post([dataset_id, manifest = std::move(manifest)](Shard& shard) { shard.add_version(dataset_id, manifest); });
}

void ShardThread::attach(SessionSetup setup) {
    auto shared_setup = std::make_shared<SessionSetup>(std::move(setup));
    post([shared_setup](Shard& shard) { shard.attach(std::move(*shared_setup)); });
}

void ShardThread::slots_populated(std::uint64_t session_id, std::uint64_t bytes, bool settled) {
    post([=](Shard& shard) { shard.slots_populated(session_id, bytes, settled); });
}

void ShardThread::run(DeviceKind kind, ShardOptions options, std::promise<Result<void>>& started,
                      std::promise<bool> done) {
    auto made_device = make_device(kind, clock_);
    if (!made_device) {
        started.set_value(std::unexpected(made_device.error()));
        return;
    }
    device_kind_ = made_device->device->kind();
    why_not_ring_ = made_device->why_not_ring;
    WakeWatch wake{.device = made_device->device.get(), .fd = wake_.get()};
    {
        Shard shard(*made_device->device, clock_, options);
        wake.start();
        started.set_value({});
        std::vector<std::function<void(Shard&)>> work;
        while (!stopping_) {
            shard.turn(clock_.now_ns() + kTurn_ns);
            {
                const std::lock_guard lock(mutex_);
                work.swap(posted_);
            }
            for (auto& item : work) {
                if (!stopping_) item(shard);
            }
            work.clear();
        }
    }
    const bool all_ended = made_device->device->stop();
    made_device->device.reset();
    done.set_value(all_ended);
}

// --- all threads of a node

struct ShardThreads::Gathering {
    ShardStatistics all;
    std::size_t missing = 0;
    std::int64_t deadline_ns = 0;
    std::function<void(Result<ShardStatistics>)> done;
};

Result<std::unique_ptr<ShardThreads>> ShardThreads::start(const Options& options, boost::asio::io_context& control) {
    std::unique_ptr<ShardThreads> self(new ShardThreads(control));
    for (unsigned i = 0; i < options.count; ++i) {
        auto thread = ShardThread::start(options.device, options.shard, "larder-data-" + std::to_string(i));
        if (!thread) return std::unexpected(thread.error());
        (*thread)->post([](Shard&) { log_without_waiting(); });
        self->threads_.push_back(std::move(*thread));
    }
    return self;
}

ShardThreads::~ShardThreads() = default;

void ShardThreads::wake() {
    for (const auto& thread : threads_) thread->post([](Shard&) {});
}

void ShardThreads::collect(std::function<void(Result<ShardStatistics>)> done) {
    auto gathering = std::make_shared<Gathering>();
    gathering->missing = threads_.size();
    gathering->deadline_ns = clock_.now_ns() + kAnswerWithin_ns;
    gathering->done = std::move(done);
    gatherings_.push_back(gathering);
    for (const auto& shard : threads_) {
        shard->post([this, gathering](Shard& this_shard) {
            auto part = std::make_shared<ShardStatistics>(this_shard.statistics());
            boost::asio::post(control_, [this, gathering, part] {
                ShardStatistics& all = gathering->all;
                std::ranges::move(part->datasets, std::back_inserter(all.datasets));
                std::ranges::move(part->jobs, std::back_inserter(all.jobs));
                all.protocol_violations += part->protocol_violations;
                all.scans += part->scans;
                all.device = part->device;
                if (--gathering->missing > 0 || !gathering->done) return;
                std::erase(gatherings_, gathering);
                std::exchange(gathering->done, nullptr)(std::move(all));
            });
        });
    }
}

void ShardThreads::fail_overdue() {
    const std::int64_t now_ns = clock_.now_ns();
    const auto overdue =
        std::ranges::partition(gatherings_, [&](const auto& gathering) { return gathering->deadline_ns > now_ns; });
    const std::vector<std::shared_ptr<Gathering>> late(overdue.begin(), overdue.end());
    gatherings_.erase(overdue.begin(), gatherings_.end());
    for (const auto& gathering : late) {
        std::exchange(gathering->done, nullptr)(fail(ErrorCode::timeout, "the data plane has not answered for 2 s"));
    }
}

}  // namespace larder::cache
