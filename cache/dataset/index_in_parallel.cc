#include "cache/dataset/index_in_parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

namespace larder::cache {
namespace {

constexpr std::size_t kThreadsMax = 8;

class ParallelRun {
public:
    ParallelRun(std::size_t count, const ObjectWork& work, const IndexProgressCallback& progress, std::stop_token stop,
                std::uint64_t bytes_max)
        : work_(work), progress_(progress), stop_(std::move(stop)), bytes_max_(bytes_max), objects_(count) {}

    Result<std::vector<IndexedObject>> run() {
        {
            std::vector<std::jthread> threads;
            for (std::size_t i = 1; i < std::min(kThreadsMax, objects_.size()); ++i)
                threads.emplace_back([this] { work(); });
            work();
        }
        if (error_) return std::unexpected(*error_);
        return std::move(objects_);
    }

private:
    void work() {
        while (!failed_.load()) {
            const std::size_t i = next_.fetch_add(1);
            if (i >= objects_.size()) return;
            if (stop_.stop_requested()) {
                return stop_with(i, Error{ErrorCode::cancelled, "indexing was cancelled"});
            }
            std::uint64_t reported = 0;
            std::uint64_t counted = 0;
            auto object = work_(i, [&](std::uint64_t bytes, std::uint64_t taken_bytes) -> Result<void> {
                report(0, bytes - reported);
                reported = bytes;
                if (stop_.stop_requested() || failed_.load()) {
                    return fail(ErrorCode::cancelled, "indexing was cancelled");
                }
                return count(taken_bytes, counted);
            });
            if (!object) return stop_with(i, object.error());
            if (auto fits = count(index_bytes(*object), counted); !fits) return stop_with(i, fits.error());
            report(1, object->size_bytes - std::min(reported, object->size_bytes));
            objects_[i] = std::move(*object);
        }
    }

    // Counts what the index of an object takes now. `counted`: what was counted for the object before.
    Result<void> count(std::uint64_t taken_bytes, std::uint64_t& counted) {
        const std::uint64_t more = taken_bytes - counted;
        counted = taken_bytes;
        if (index_bytes_.fetch_add(more) + more > bytes_max_) return index_too_large(bytes_max_);
        return {};
    }

    // Keeps the error with the lowest index. `cancelled` never replaces another error, which may have caused it.
    void stop_with(std::size_t i, const Error& error) {
        const std::scoped_lock lock(mutex_);
        const bool is_less_useful = error_ && (error.code == ErrorCode::cancelled || i > error_object_);
        if (!is_less_useful) {
            error_ = error;
            error_object_ = i;
        }
        failed_.store(true);
    }

    void report(std::uint64_t objects, std::uint64_t bytes) {
        const std::scoped_lock lock(mutex_);
        done_.objects_done += objects;
        done_.bytes_done += bytes;
        done_.objects_total = objects_.size();
        if (progress_) progress_(done_);
    }

    const ObjectWork& work_;
    const IndexProgressCallback& progress_;
    std::stop_token stop_;
    std::uint64_t bytes_max_;
    std::vector<IndexedObject> objects_;
    std::atomic<std::uint64_t> index_bytes_{0};
    std::atomic<std::size_t> next_{0};
    std::atomic<bool> failed_{false};
    std::mutex mutex_;  // guards the members below
    IndexProgress done_;
    std::optional<Error> error_;
    std::size_t error_object_ = 0;
};

}  // namespace

Result<std::vector<IndexedObject>> index_in_parallel(std::size_t count, const ObjectWork& work,
                                                     const IndexProgressCallback& progress, std::stop_token stop,
                                                     std::uint64_t bytes_max) {
    return ParallelRun(count, work, progress, std::move(stop), bytes_max).run();
}

}  // namespace larder::cache
