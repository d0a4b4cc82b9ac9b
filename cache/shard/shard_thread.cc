#include "cache/shard/shard_thread.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace larder::cache {
namespace {

constexpr std::int64_t kTurn_ns = 1'000'000'000;
constexpr std::int64_t kDrain_ns = 2'000'000'000;

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
    self->thread_ = std::thread([&started, kind, options, raw = self.get()] { raw->run(kind, options, started); });
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
    thread_.join();
}

void ShardThread::post(std::function<void(Shard&)> work) {
    {
        const std::lock_guard lock(mutex_);
        posted_.push_back(std::move(work));
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void ShardThread::run(DeviceKind kind, ShardOptions options, std::promise<Result<void>>& started) {
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
}

}  // namespace larder::cache
