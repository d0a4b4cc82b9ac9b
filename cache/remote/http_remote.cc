#include "cache/remote/http_remote.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <utility>

#include "base/assert.h"
#include "base/file.h"
#include "base/server/logging.h"
#include "base/server/percent_encoding.h"

namespace larder::cache {
namespace {

using protocol::BlockStatus;

class HttpRemote final : public PeerRemote {
public:
    // `problems` is null for a peer: a read that fails there is read from the remote.
    HttpRemote(HttpRoot root, Device& device, HttpTransfers& transfers, FileDescriptor event,
               std::shared_ptr<RemoteProblems> problems)
        : root_(std::move(root)),
          device_(device),
          transfers_(transfers),
          event_(std::move(event)),
          problems_(std::move(problems)) {
        watch_.remote = this;
        watch_.done = [](Operation& operation, std::int32_t) noexcept {
            HttpRemote& self = *static_cast<Watch&>(operation).remote;
            self.watching_ = false;
            self.finish_ended();
        };
    }

    HttpRemote(const HttpRemote&) = delete;
    HttpRemote& operator=(const HttpRemote&) = delete;

    // Cancels reads that were in flight at Device::stop. Their memory must stay valid until here.
    ~HttpRemote() override {
        if (in_flight_ > 0) transfers_.cancel(this);
    }

    void read(RemoteRead& request) override {
        const bool whole = request.offset == 0 && request.into.size() == request.object_bytes;
        start(request, whole ? HttpRequestKind::whole : HttpRequestKind::range);
    }

    void offer(RemoteRead& block) override { start(block, HttpRequestKind::send); }

private:
    void start(RemoteRead& request, HttpRequestKind kind) {
        HttpGet& read = allocate_read();
        read.context = &request;
        request.remote_state = &read;
        read.url.assign(root_.url);
        read.url += '/';
        append_percent_encoded_path(request.path, read.url);
        read.ask = kind;
        read.offset = request.offset;
        read.into = request.into;
        read.object_bytes = request.object_bytes;
        read.tag = request.object_mtime_ns;
        read.attempts = 0;
        read.payer = request.payer;
        read.extra_bytes = 0;
        read.wants_times = request.times != nullptr;
        read.times = {};
        ++in_flight_;
        watch();
        transfers_.submit(read);
    }

    struct Watch : Operation {
        HttpRemote* remote = nullptr;
    };

    HttpGet& allocate_read() {
        if (free_ != nullptr) return *std::exchange(free_, free_->next);
        HttpGet& read = reads_.emplace_back();
        read.owner = this;
        read.origin = root_.origin.get();
        read.done = [](HttpGet& get) noexcept { static_cast<HttpRemote*>(get.owner)->push_ended(get); };
        return read;
    }

    // Runs on the transfers' thread.
    void push_ended(HttpGet& read) {
        HttpGet* head = ended_.load(std::memory_order_relaxed);
        do {
            read.next = head;
        } while (!ended_.compare_exchange_weak(head, &read, std::memory_order_release, std::memory_order_relaxed));
        if (head != nullptr) return;  // the first read of the list has written to the eventfd
        const std::uint64_t one = 1;
        const ssize_t written = ::write(event_.get(), &one, sizeof one);
        LARDER_ASSERT(written == sizeof one);
    }

    void watch() {
        if (watching_ || in_flight_ == 0) return;
        watching_ = true;
        device_.watch(event_.get(), watch_);
    }

    void finish_ended() {
        std::uint64_t count = 0;
        // Read the eventfd before taking the list: a read that ends later then writes to the eventfd again.
        const ssize_t got = ::read(event_.get(), &count, sizeof count);
        LARDER_ASSERT(got == sizeof count || errno == EAGAIN || errno == EINTR);
        HttpGet* read = ended_.exchange(nullptr, std::memory_order_acquire);
        while (read != nullptr) {
            HttpGet* next = read->next;
            finish(*read);
            read = next;
        }
        watch();
    }

    // Frees the state before `done` runs, because `done` may start the next read.
    void finish(HttpGet& read) {
        RemoteRead& request = *static_cast<RemoteRead*>(std::exchange(read.context, nullptr));
        request.remote_state = nullptr;
        request.extra_bytes = read.extra_bytes;
        if (request.times != nullptr) *request.times = read.times;
        read.payer.reset();
        --in_flight_;
        BlockStatus status = BlockStatus::ok;
        int system_errno = 0;
        switch (read.outcome) {
            case HttpOutcome::ok: break;
            case HttpOutcome::missing: status = BlockStatus::object_missing; break;
            case HttpOutcome::changed: status = BlockStatus::object_changed; break;
            case HttpOutcome::cancelled:
            case HttpOutcome::failed:
                status = BlockStatus::remote_failed;
                system_errno = read.system_errno != 0 ? read.system_errno : EREMOTEIO;
                break;
        }
        if (status != BlockStatus::ok && problems_ != nullptr) {
            log_warn("remote read failed", {{"error", read.message}});
            problems_->note(request.path, read.message);
        }
        read.next = std::exchange(free_, &read);
        request.done(request, status, system_errno);
    }

    const HttpRoot root_;
    Device& device_;
    HttpTransfers& transfers_;
    FileDescriptor event_;
    const std::shared_ptr<RemoteProblems> problems_;
    Watch watch_;
    bool watching_ = false;
    std::size_t in_flight_ = 0;
    std::deque<HttpGet> reads_;
    HttpGet* free_ = nullptr;
    std::atomic<HttpGet*> ended_{nullptr};
};

Result<std::unique_ptr<HttpRemote>> make_remote(HttpRoot root, Device& device, HttpTransfers& transfers,
                                                std::shared_ptr<RemoteProblems> problems) {
    FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (event.get() < 0) return fail_errno(errno, "eventfd");
    return std::make_unique<HttpRemote>(std::move(root), device, transfers, std::move(event), std::move(problems));
}

}  // namespace

Result<std::unique_ptr<Remote>> make_http_remote(HttpRoot root, Device& device, HttpTransfers& transfers,
                                                 std::shared_ptr<RemoteProblems> problems) {
    return make_remote(std::move(root), device, transfers, std::move(problems));
}

Result<std::unique_ptr<PeerRemote>> make_http_peer(HttpRoot root, Device& device, HttpTransfers& transfers) {
    return make_remote(std::move(root), device, transfers, nullptr);
}

}  // namespace larder::cache
