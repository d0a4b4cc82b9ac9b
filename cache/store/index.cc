#include "cache/store/index.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/clock.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kCommitsPerReaderCheck = 256;

Result<std::string> move_aside(const std::string& directory) {
    std::string target = directory + ".damaged";
    std::error_code error;
    std::filesystem::remove_all(target, error);
    if (::rename(directory.c_str(), target.c_str()) != 0) {
        return fail_errno(errno, "put the damaged index " + directory + " aside");
    }
    return target;
}

Result<void> make_directory(const std::string& directory) {
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
        return fail_errno(errno, "make the index directory " + directory);
    }
    return {};
}

}  // namespace

Result<Index::Opened> Index::open(IndexOptions options) {
    Opened opened;
    std::unique_ptr<IndexEnvironment> environment;
    if (!options.directory.empty()) {
        opened.report.created = ::access((options.directory + "/data.mdb").c_str(), F_OK) != 0;
        auto found = find_index_damage(options.directory, true);
        if (!found) return std::unexpected(found.error());
        std::optional<std::string>& damage = *found;
        for (;;) {
            if (damage) {
                auto moved_to = move_aside(options.directory);
                if (!moved_to) return std::unexpected(moved_to.error());
                opened.report.rebuilt = true;
                opened.report.reason = std::move(*damage);
                opened.report.damaged_directory = std::move(*moved_to);
            }
            if (auto made = make_directory(options.directory); !made) return std::unexpected(made.error());
            auto made = IndexEnvironment::open(options.directory, options.map_bytes);
            if (made) {
                environment = std::move(*made);
                break;
            }
            if (made.error().code != ErrorCode::corrupt || opened.report.rebuilt) return std::unexpected(made.error());
            damage = made.error().message;
        }
    }
    FileDescriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake) return fail_errno(errno, "eventfd for the index");
    opened.index.reset(new Index(std::move(options), std::move(environment), std::move(wake)));
    if (auto started = opened.index->start(); !started) return std::unexpected(started.error());
    return opened;
}

Index::Index(IndexOptions options, std::unique_ptr<IndexEnvironment> environment, FileDescriptor wake)
    : options_(std::move(options)), environment_(std::move(environment)), wake_(std::move(wake)) {
    status_.persisting = environment_ != nullptr;
    if (environment_ != nullptr) next_segment_id_ = environment_->next_segment();
}

Result<void> Index::start() {
    if (environment_ == nullptr) return {};
    try {
        writer_ = std::thread([this] { write_loop(); });
    } catch (const std::system_error& error) {
        return fail_errno(error.code().value(), "start the index's thread");
    }
    return {};
}

Index::~Index() {
    if (!writer_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake();
    writer_.join();
}

std::uint32_t Index::allocate_segment_id() {
    return next_segment_id_.fetch_add(1, std::memory_order_relaxed);
}

void Index::reserve_segment_ids_below(std::uint32_t next) {
    std::uint32_t seen = next_segment_id_.load(std::memory_order_relaxed);
    while (seen < next && !next_segment_id_.compare_exchange_weak(seen, next, std::memory_order_relaxed)) {
    }
}

void Index::put_segment(std::uint64_t dataset_id, std::uint32_t segment, std::uint64_t size_bytes,
                        std::uint32_t alignment, bool sealed) {
    post({.kind = IndexChange::Kind::put_segment,
          .sealed = sealed,
          .alignment = alignment,
          .segment = segment,
          .dataset_id = dataset_id,
          .size_bytes = size_bytes});
}

void Index::remove_segment(std::uint64_t dataset_id, std::uint32_t segment) {
    post({.kind = IndexChange::Kind::remove_segment, .segment = segment, .dataset_id = dataset_id});
}

void Index::put_block(std::uint64_t dataset_id, std::uint32_t segment, const StoredBlock& block) {
    post({.kind = IndexChange::Kind::put_block, .segment = segment, .dataset_id = dataset_id, .block = block});
}

void Index::remove_block(std::uint64_t dataset_id, std::uint32_t segment, std::uint32_t offset_units) {
    post({.kind = IndexChange::Kind::remove_block,
          .segment = segment,
          .dataset_id = dataset_id,
          .block = {.offset_units = offset_units}});
}

void Index::remove_dataset(std::uint64_t dataset_id) {
    post({.kind = IndexChange::Kind::remove_dataset, .dataset_id = dataset_id});
}

void Index::post(const IndexChange& change) {
    bool must_wake = false;
    {
        const std::lock_guard lock(mutex_);
        if (!status_.persisting || pending_.size() >= options_.pending_changes_max) {
            status_.changes_lost++;
            return;
        }
        pending_.push_back(change);
        posted_count_++;
        must_wake = pending_.size() == 1 || pending_.size() == options_.commit_changes_max;
    }
    if (must_wake) wake();
}

void Index::wake() {
    const std::uint64_t one = 1;
    // The write fails only if the counter is full, and then the eventfd is readable anyway.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Index::sleep(std::int64_t ms_max) {
    pollfd waited{.fd = wake_.get(), .events = POLLIN, .revents = 0};
    ::poll(&waited, 1, static_cast<int>(ms_max));
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t read_bytes = ::read(wake_.get(), &count, sizeof count);
}

void Index::write_loop() {
    const SteadyClock clock;
    std::vector<IndexChange> changes;
    for (;;) {
        sleep(-1);
        // A wakeup may be for changes that are already committed. The writer sleeps on until a commit is due.
        const auto may_wait = [&] {
            const std::lock_guard lock(mutex_);
            return !flush_requested_ && !stop_ && pending_.size() < options_.commit_changes_max;
        };
        const std::int64_t began_ns = clock.now_ns();
        while (may_wait()) {
            const std::int64_t left_ms = options_.commit_after_ms - (clock.now_ns() - began_ns) / 1'000'000;
            if (left_ms <= 0) break;
            sleep(left_ms);
        }
        bool should_stop = false;
        {
            const std::lock_guard lock(mutex_);
            std::swap(changes, pending_);
            should_stop = stop_;
            flush_requested_ = false;
        }
        if (!changes.empty()) commit(changes);
        changes.clear();
        if (should_stop) return;
    }
}

void Index::commit(const std::vector<IndexChange>& changes) {
    const auto committed = environment_->commit(changes, next_segment_id_.load(std::memory_order_relaxed));
    const std::lock_guard lock(mutex_);
    committed_count_ += changes.size();
    if (committed) {
        status_.commits++;
        status_.changes_committed += changes.size();
        status_.problem.clear();
        if (status_.commits % kCommitsPerReaderCheck == 0) environment_->check_readers();
    } else {
        // Each lost row costs one refetch after a restart, or one search for a missing file. Nothing else depends on
        // the row.
        status_.changes_lost += changes.size();
        status_.problem = committed.error().message;
        status_.persisting = !environment_->broken();
    }
    committed_.notify_all();
}

void Index::flush() {
    std::unique_lock lock(mutex_);
    if (environment_ == nullptr || committed_count_ == posted_count_) return;
    const std::uint64_t target_count = posted_count_;
    flush_requested_ = true;
    wake();
    committed_.wait(lock, [&] { return committed_count_ >= target_count; });
}

Result<std::vector<StoredSegment>> Index::load(std::uint64_t dataset_id) const {
    if (environment_ == nullptr) return std::vector<StoredSegment>{};
    return environment_->load(dataset_id);
}

IndexStatus Index::status() const {
    const std::lock_guard lock(mutex_);
    return status_;
}

}  // namespace larder::cache
