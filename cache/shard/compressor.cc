#include "cache/shard/compressor.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zstd.h>

#include <cstdlib>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"
#include "cache/protocol/record.h"
#include "cache/protocol/wire.h"
#include "cache/store/compression.h"

namespace larder::cache {

using protocol::kPageBytes;
using protocol::kRecordHeaderBytes;

void CompressWork::Free::operator()(std::byte* memory) const {
    std::free(memory);
}

void Compressor::FreeContext::operator()(ZSTD_CCtx_s* context) const {
    ::ZSTD_freeCCtx(context);
}

void Compressor::List::push(CompressWork& work) {
    work.next_ = nullptr;
    (last != nullptr ? last->next_ : first) = &work;
    last = &work;
}

CompressWork* Compressor::List::pop() {
    CompressWork* work = first;
    if (work == nullptr) return nullptr;
    first = work->next_;
    if (first == nullptr) last = nullptr;
    return work;
}

Compressor::Compressor(Device& device, bool threaded) : device_(device), threaded_(threaded) {}

Compressor::~Compressor() {
    stop();
}

void Compressor::stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
}

void Compressor::start(CompressWork& work) {
    bytes_in_flight_ += work.raw.size();
    if (threaded_ && !thread_.joinable()) {
        done_event_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        LARDER_ASSERT(done_event_);
        watch_.device = &device_;
        watch_.fd = done_event_.get();
        watch_.operation.done = [](Operation& operation, std::int32_t result) noexcept {
            auto& watch = reinterpret_cast<Watch&>(operation);
            if (result < 0) return;
            std::uint64_t count = 0;
            [[maybe_unused]] const ssize_t got = ::read(watch.fd, &count, sizeof count);
            watch.device->watch(watch.fd, watch.operation);
        };
        static_assert(offsetof(Watch, operation) == 0);
        device_.watch(watch_.fd, watch_.operation);
        thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
        pthread_setname_np(thread_.native_handle(), "compress");
    }
    {
        const std::lock_guard lock(mutex_);
        waiting_.push(work);
    }
    ready_.notify_one();
}

void Compressor::run(const std::stop_token& stop) {
    for (;;) {
        CompressWork* work = nullptr;
        {
            std::unique_lock lock(mutex_);
            if (!ready_.wait(lock, stop, [&] { return waiting_.first != nullptr; })) return;
            work = waiting_.pop();
        }
        compress(*work);
        {
            const std::lock_guard lock(mutex_);
            done_.push(*work);
        }
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(done_event_.get(), &one, sizeof one);
    }
}

void Compressor::collect() {
    if (bytes_in_flight_ == 0) return;
    List done;
    {
        const std::lock_guard lock(mutex_);
        if (!threaded_) {
            while (CompressWork* work = waiting_.pop()) {
                compress(*work);
                done_.push(*work);
            }
        }
        done = std::exchange(done_, {});
    }
    while (CompressWork* work = done.pop()) {
        bytes_in_flight_ -= work->raw.size();
        work->done(*work);
    }
}

void Compressor::compress(CompressWork& work) {
    work.stored_bytes = 0;
    if (!context_) context_.reset(::ZSTD_createCCtx());
    const auto raw_bytes = static_cast<std::uint32_t>(work.raw.size());
    const std::uint32_t payload_bytes_max = compressed_bytes_max(raw_bytes);
    const std::size_t memory_bytes = protocol::record_bytes(payload_bytes_max, kPageBytes);
    if (work.memory_bytes_ < memory_bytes) {
        work.memory_bytes_ = 0;
        work.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, memory_bytes)));
        if (work.memory_ != nullptr) work.memory_bytes_ = memory_bytes;
    }
    // Without memory the block is admitted uncompressed.
    if (!context_ || work.memory_ == nullptr || payload_bytes_max == 0) return;
    ::ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, work.level);
    const std::size_t compressed_bytes = ::ZSTD_compress2(context_.get(), work.memory_.get() + kRecordHeaderBytes,
                                                          payload_bytes_max, work.raw.data(), work.raw.size());
    if (::ZSTD_isError(compressed_bytes) != 0) return;  // also if the result exceeds `payload_bytes_max`
    work.stored_bytes = static_cast<std::uint32_t>(compressed_bytes);
    work.stored_crc = crc32c({work.memory_.get() + kRecordHeaderBytes, compressed_bytes});
}

}  // namespace larder::cache
