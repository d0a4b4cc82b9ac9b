#include "bench/lru_feeder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "base/file.h"
#include "base/hash.h"

namespace larder::bench {

LruFeeder::LruFeeder(const LruOptions& options) : options_(options), order_(options.files.count) {
    if (options_.remote_bytes_per_second > 0) {
        bucket_.set_limit(options_.remote_bytes_per_second, options_.remote_burst_bytes, clock_.now_ns());
    }
    for (std::uint32_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { prefetch(); });
}

LruFeeder::~LruFeeder() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

std::uint32_t LruFeeder::block_at(std::uint64_t position) {
    const std::uint64_t epoch = position / options_.files.count;
    if (epoch != order_epoch_) {
        order_epoch_ = epoch;
        std::iota(order_.begin(), order_.end(), 0u);
        std::uint64_t state = mix64(options_.seed) ^ mix64(epoch);
        for (std::size_t i = order_.size(); i > 1; --i) {
            state = mix64(state);
            std::swap(order_[i - 1], order_[state % i]);
        }
    }
    return order_[position % options_.files.count];
}

void LruFeeder::prefetch() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return stopping_ || next_to_read_ < next_to_deliver_ + options_.prefetch_blocks; });
        if (stopping_) return;
        const std::uint64_t position = next_to_read_++;
        const std::uint32_t block = block_at(position);
        Result<Bytes> got = options_.store->look_up(options_.dataset, block);
        ++totals_.blocks;
        if (*got != nullptr) {
            ++totals_.hits;
        } else {
            lock.unlock();
            got = read_remote(block);
            lock.lock();
            if (got) options_.store->insert(options_.dataset, block, *got);
        }
        ready_.emplace(position, std::move(got));
        changed_.notify_all();
    }
}

Result<LruFeeder::Bytes> LruFeeder::read_remote(std::uint32_t block) {
    if (options_.shared_remote) options_.shared_remote->take(options_.reader, options_.files.bytes_each);
    while (!bucket_.try_take(options_.files.bytes_each, clock_.now_ns())) {
        const std::int64_t wait_ns = bucket_.ready_at_ns(options_.files.bytes_each) - clock_.now_ns();
        std::this_thread::sleep_for(std::chrono::nanoseconds(std::max<std::int64_t>(wait_ns, 1000)));
    }
    char name[32];
    std::snprintf(name, sizeof name, "/%06u.bin", block);
    auto file = open_file(options_.files.directory + name, O_RDONLY);
    if (!file) return std::unexpected(file.error());
    std::vector<std::byte> bytes(options_.files.bytes_each);
    for (std::size_t done = 0; done < bytes.size();) {
        const ssize_t got = ::pread(file->get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
        if (got <= 0) return fail_errno(got < 0 ? errno : EIO, std::string("read ") + name);
        done += static_cast<std::size_t>(got);
    }
    return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}

Result<std::optional<FedBatch>> LruFeeder::next() {
    std::unique_lock lock(mutex_);
    if (next_to_deliver_ > 0 && next_to_deliver_ % options_.files.count == 0 && !epoch_end_returned_) {
        epoch_end_returned_ = true;
        return std::nullopt;
    }
    epoch_end_returned_ = false;
    const std::uint64_t epoch_end = (next_to_deliver_ / options_.files.count + 1) * options_.files.count;
    FedBatch fed;
    for (std::uint32_t i = 0; i < options_.batch_size && next_to_deliver_ < epoch_end; ++i) {
        changed_.wait(lock, [&] { return ready_.contains(next_to_deliver_); });
        const auto found = ready_.find(next_to_deliver_);
        Result<Bytes> got = std::move(found->second);
        ready_.erase(found);
        ++next_to_deliver_;
        changed_.notify_all();
        if (!got) return std::unexpected(got.error());
        lock.unlock();
        const std::int64_t began_ns = clock_.now_ns();
        checksum_ += sum_bytes((*got)->data(), (*got)->size());
        fed.reading_ns += clock_.now_ns() - began_ns;
        fed.bytes += (*got)->size();
        lock.lock();
        totals_.bytes += (*got)->size();
    }
    return fed;
}

FeederTotals LruFeeder::totals() const {
    const std::lock_guard lock(mutex_);
    return totals_;
}

}  // namespace larder::bench
