#include "tools/mount/sample_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace larder::mount {
namespace {

// A sample is kept for so long after its last use. Programs may read on in open files, and are about to read what was
// fetched ahead.
constexpr std::int64_t kKept_ns = 1'000'000'000;
constexpr std::int64_t kKeptAhead_ns = 30'000'000'000;
constexpr std::int64_t kKeptOpen_ns = 60'000'000'000;
constexpr std::size_t kKeptMax = 2048;
// Samples kept whose files are closed: for programs that read a sample's fields one after the other, or a file twice.
// More would be a cache beside the node's.
constexpr std::size_t kClosedMax = 32;
constexpr std::int64_t kRefusedPause_ns = 5'000'000'000;
constexpr std::uint32_t kGroupMax = 64;  // samples
constexpr std::uint64_t kGroupMax_bytes = 8 << 20;
constexpr std::uint64_t kGroupsPerReader = 4;  // that fit a reader's memory
constexpr std::chrono::milliseconds kKeeperPeriod{250};
constexpr std::chrono::milliseconds kInterruptPeriod{100};

Error interrupted_error() {
    return {.code = ErrorCode::cancelled, .message = "interrupted while waiting for a sample"};
}

// A wait on this thread may be interrupted by its caller, or by the end of the pool that it belongs to.
thread_local bool (*asks_caller)() = nullptr;
thread_local const std::stop_token* pool_ends = nullptr;

bool wait_is_interrupted() {
    return (pool_ends != nullptr && pool_ends->stop_requested()) || (asks_caller != nullptr && asks_caller());
}

class AskingCaller {
public:
    explicit AskingCaller(bool (*ask)()) : before_(std::exchange(asks_caller, ask)) {}
    ~AskingCaller() { asks_caller = before_; }

private:
    bool (*before_)();
};

}  // namespace

Result<std::unique_ptr<SamplePool>> SamplePool::open(PoolOptions options) {
    const AskingCaller asking(options.connection.interrupted);
    ConnectOptions connection = options.connection;
    connection.interrupted = wait_is_interrupted;
    auto first = detail::DatasetCore::open(std::move(connection), {.sequential = true, .may_exceed_budget = true});
    if (!first) return std::unexpected(first.error());
    if ((*first)->manifest().has_rows()) {
        return fail(ErrorCode::unsupported, "dataset \"" + options.connection.dataset +
                                                "\" has rows of tables, which have no bytes of their own: read it with "
                                                "the Python package (larder.parquet)");
    }
    return std::unique_ptr<SamplePool>(new SamplePool(std::move(options), std::move(*first)));
}

SamplePool::SamplePool(PoolOptions options, std::unique_ptr<detail::DatasetCore> first)
    : options_(std::move(options)),
      caller_is_interrupted_(std::exchange(options_.connection.interrupted, wait_is_interrupted)),
      group_bytes_max_(std::min(kGroupMax_bytes, first->slot_bytes() / kGroupsPerReader)),
      manifest_(first->manifest()) {
    options_.readers_max =
        std::clamp<std::uint64_t>(kPoolMemoryMax_bytes / first->slot_bytes(), 1, options_.readers_max);
    readers_.push_back(std::make_unique<Reader>(Reader{.core = std::move(first), .unused = {}}));
    idle_.push_back(readers_.back().get());
    keeper_ = std::jthread([this](const std::stop_token& stop) { keep_sessions(stop); });
    for (std::jthread& thread : ahead_threads_) {
        thread = std::jthread([this](const std::stop_token& stop) { fetch_ahead(stop); });
    }
}

SamplePool::~SamplePool() {
    for (std::jthread& thread : ahead_threads_) thread.request_stop();
    for (std::jthread& thread : ahead_threads_) thread = {};
    keeper_ = {};
    for (const auto& [sample, fetch] : std::exchange(fetches_, {})) fetch->result.reset();
    for (const auto& reader : readers_) destroy_unused(*reader);
}

Result<std::shared_ptr<const Sample>> SamplePool::get(std::uint64_t sample) {
    const AskingCaller asking(caller_is_interrupted_);
    std::shared_ptr<Fetch> fetch;  // outlives the lock: the last owner of a sample must not hold it
    std::unique_lock lock(mutex_);
    for (;;) {
        const auto found = fetches_.find(sample);
        if (found == fetches_.end()) {
            const Group group = group_from(sample);
            return get_group(group, lock);
        }
        fetch = found->second;
        const auto run = std::ranges::find(runs_, sample, &Run::group);
        if (run != runs_.end() && run->length > 1) start_ahead(*run);
        while (!fetch->result) {
            if (auto waited = wait(lock); !waited) return std::unexpected(waited.error());
        }
        if (*fetch->result) {
            fetch->is_requested = true;
            fetch->used_ns = clock_.now_ns();
            if (fetch->is_kept) recent_.splice(recent_.end(), recent_, fetch->place);
            return *fetch->result;
        }
        const Error& error = fetch->result->error();
        if (error.code == ErrorCode::unavailable) return *fetch->result;
        // Retry if the fetch was cancelled by its own thread, or if another sample of the group failed.
        if (fetch->is_requested && error.code != ErrorCode::cancelled) return *fetch->result;
    }
}

SamplePool::Group SamplePool::group_from(std::uint64_t sample) {
    const auto found = std::ranges::find(runs_, sample, &Run::next);
    const bool goes_on = found != runs_.end();
    const std::uint32_t length = goes_on ? std::min(found->length * 2, kGroupMax) : 1;
    std::rotate(goes_on ? found : runs_.begin(), goes_on ? found + 1 : runs_.begin() + 1, runs_.end());
    Run& run = runs_.back();
    run = {.group = sample, .next = end_of_group(sample, length), .length = length};
    Group group = reserve(sample, run.next);
    group.fetches.front()->is_requested = true;
    if (goes_on) start_ahead(run);
    return group;
}

void SamplePool::start_ahead(Run& run) {
    if (ahead_.size() >= ahead_idle_ || run.next == kNone || run.next >= manifest().sample_count()) return;
    const std::uint32_t length = std::min(run.length * 2, kGroupMax);
    const std::uint64_t end = end_of_group(run.next, length);
    Group group = reserve(run.next, end);
    run = {.group = run.next, .next = end, .length = length};
    if (group.fetches.empty()) return;
    group.is_ahead = true;
    ahead_.push_back(std::move(group));
    ahead_wanted_.notify_one();
}

void SamplePool::fetch_ahead(const std::stop_token& stop) {
    pool_ends = &stop;
    std::unique_lock lock(mutex_);
    for (;;) {
        ahead_wanted_.wait(lock, stop, [&] { return !ahead_.empty(); });
        if (ahead_.empty()) break;
        --ahead_idle_;
        {
            const Group group = std::move(ahead_.front());
            ahead_.pop_front();
            // A failed group is left to whoever asks for a sample of it, who fetches it and reports what is wrong.
            static_cast<void>(get_group(group, lock));
        }  // the group may own samples, which must not be destroyed under the lock
        lock.lock();
        ++ahead_idle_;
    }
    pool_ends = nullptr;
}

SamplePool::Group SamplePool::reserve(std::uint64_t first, std::uint64_t end) {
    Group group;
    group.samples.reserve(end - first);
    group.fetches.reserve(end - first);
    for (std::uint64_t sample = first; sample < end; ++sample) {
        const auto [place, is_new] = fetches_.try_emplace(sample);
        if (!is_new) continue;
        place->second = std::make_shared<Fetch>(Fetch{.is_requested = false});
        group.samples.push_back(sample);
        group.fetches.push_back(place->second);
    }
    return group;
}

Result<std::shared_ptr<const Sample>> SamplePool::get_group(const Group& group, std::unique_lock<std::mutex>& lock) {
    const auto reader = take_reader(lock);
    Result<std::vector<SharedSample>> got;
    if (reader) {
        lock.unlock();
        got = fetch(**reader, group);
        lock.lock();
        idle_.push_back(*reader);
        if (!got && got.error().code == ErrorCode::unavailable) {
            ++times_away_;
            away_error_ = got.error();
        }
    } else {
        got = std::unexpected(reader.error());
    }
    std::vector<SharedSample> dropped;
    for (std::size_t i = 0; i < group.fetches.size(); ++i) {
        Fetch& fetch = *group.fetches[i];
        if (got && i < got->size()) {
            fetch.result = (*got)[i];
            fetch.place = recent_.insert(recent_.end(), group.samples[i]);
            fetch.used_ns = clock_.now_ns();
            fetch.is_kept = true;
        } else {
            fetch.result = std::unexpected(got ? interrupted_error() : got.error());
            fetches_.erase(group.samples[i]);
        }
    }
    while (recent_.size() > kKeptMax) dropped.push_back(forget_oldest());
    lock.unlock();
    changed_.notify_all();
    if (!got) return std::unexpected(got.error());
    return got->front();
}

std::uint64_t SamplePool::end_of_group(std::uint64_t first, std::uint32_t length) const {
    const std::uint64_t end = std::min(first + length, manifest().sample_count());
    std::uint32_t block = manifest().block_of_sample(first);
    std::uint64_t bytes = 0;
    for (std::uint64_t sample = first + 1; sample < end; ++sample) {
        const std::uint32_t next = manifest().block_of_sample(sample);
        if (next == block) continue;
        block = next;
        bytes += manifest().block_bytes(block);
        if (bytes > group_bytes_max_) return sample;
    }
    return end;
}

Result<void> SamplePool::wait(std::unique_lock<std::mutex>& lock) {
    changed_.wait_for(lock, kInterruptPeriod);
    return wait_is_interrupted() ? Result<void>(std::unexpected(interrupted_error())) : Result<void>();
}

Result<SamplePool::Reader*> SamplePool::take_reader(std::unique_lock<std::mutex>& lock) {
    const std::uint64_t times_away = times_away_;
    for (;;) {
        // The fetch that this one waited for has waited for the daemon as long as it may.
        if (times_away_ != times_away) return std::unexpected(away_error_);
        if (!idle_.empty()) {
            Reader* const reader = idle_.back();
            idle_.pop_back();
            return reader;
        }
        if (!is_keeping_ && readers_.size() + opening_ < options_.readers_max && clock_.now_ns() >= open_more_ns_) {
            ++opening_;
            lock.unlock();
            ConnectOptions connection = options_.connection;
            connection.reconnect_timeout_ms = 0;  // the readers that there are wait for a daemon that is away
            auto core = detail::DatasetCore::open(
                std::move(connection),
                {.version = manifest_.header().version, .sequential = true, .may_exceed_budget = true});
            if (core) (*core)->set_reconnect_timeout_ms(options_.connection.reconnect_timeout_ms);
            lock.lock();
            --opening_;
            if (core) {
                readers_.push_back(std::make_unique<Reader>(Reader{.core = std::move(*core), .unused = {}}));
                return readers_.back().get();
            }
            open_more_ns_ = clock_.now_ns() + kRefusedPause_ns;
            continue;
        }
        if (auto waited = wait(lock); !waited) return std::unexpected(waited.error());
    }
}

Result<std::vector<std::shared_ptr<const Sample>>> SamplePool::fetch(Reader& reader, const Group& group) {
    std::vector<std::uint64_t> samples = group.samples;
    bool may_forget = true;
    for (;;) {
        destroy_unused(reader);
        // A fetch that finds no room in the middle has read its first blocks in vain.
        const bool has_room = !may_forget || block_bytes_of(samples) <= reader.core->slot_bytes_free();
        auto batch = has_room ? reader.core->fetch(samples) : fail(ErrorCode::no_space, "no room for the samples");
        if (batch) return share(reader, std::move(*batch));
        const ErrorCode code = batch.error().code;
        if (group.is_ahead && code != ErrorCode::no_space) return std::unexpected(batch.error());
        if (!group.is_ahead && samples.size() > 1 && code != ErrorCode::cancelled && code != ErrorCode::unavailable) {
            samples.erase(samples.begin() + 1, samples.end());  // retry with the requested sample alone
            continue;
        }
        if (code != ErrorCode::no_space) return std::unexpected(batch.error());
        // Samples that are kept have all of the reader's memory. Those that nobody has read yet stay if they can.
        std::unique_lock lock(mutex_);
        SharedSample oldest;
        may_forget = !recent_.empty() && (!group.is_ahead || fetches_.at(recent_.front())->is_requested);
        if (may_forget) {
            oldest = forget_oldest();
        } else if (group.is_ahead) {
            return std::unexpected(batch.error());
        } else if (has_room) {
            if (auto waited = wait(lock); !waited) return std::unexpected(waited.error());
        }
        lock.unlock();
    }
}

std::uint64_t SamplePool::block_bytes_of(std::span<const std::uint64_t> samples) const {
    std::uint64_t bytes = 0;
    std::optional<std::uint32_t> last;
    for (const std::uint64_t sample : samples) {
        const std::uint32_t block = manifest().block_of_sample(sample);
        if (block != last) bytes += manifest().block_bytes(block);
        last = block;
    }
    return bytes;
}

std::vector<SamplePool::SharedSample> SamplePool::share(Reader& reader, Batch batch) {
    const std::shared_ptr<Batch> held(new Batch(std::move(batch)), [this, &reader](Batch* unused) {
        {
            const std::lock_guard lock(mutex_);
            reader.unused.push_back(std::move(*unused));
        }
        delete unused;
        changed_.notify_all();
    });
    std::vector<SharedSample> samples;
    samples.reserve(held->size());
    for (const Sample& sample : held->samples()) samples.emplace_back(held, &sample);
    return samples;
}

void SamplePool::destroy_unused(Reader& reader) {
    std::vector<Batch> unused;
    const std::lock_guard lock(mutex_);
    unused.swap(reader.unused);
}

void SamplePool::note_open(std::uint64_t sample) {
    const std::lock_guard lock(mutex_);
    ++open_files_[sample];
}

void SamplePool::note_closed(std::uint64_t sample) {
    SharedSample dropped;
    const std::lock_guard lock(mutex_);
    const auto found = open_files_.find(sample);
    if (found == open_files_.end() || --found->second > 0) return;
    open_files_.erase(found);
    closed_.push_back(sample);
    if (closed_.size() <= kClosedMax) return;
    const auto oldest = fetches_.find(closed_.front());
    const bool is_idle = oldest != fetches_.end() && oldest->second->is_kept && !open_files_.contains(oldest->first);
    if (is_idle) dropped = forget(oldest->first);
    closed_.pop_front();
}

std::int64_t SamplePool::kept_ns(std::uint64_t sample, const Fetch& fetch) const {
    if (open_files_.contains(sample)) return kKeptOpen_ns;
    return fetch.is_requested ? kKept_ns : kKeptAhead_ns;
}

SamplePool::SharedSample SamplePool::forget_oldest() {
    return forget(recent_.front());
}

SamplePool::SharedSample SamplePool::forget(std::uint64_t sample) {
    const auto found = fetches_.find(sample);
    SharedSample kept = **found->second->result;
    found->second->is_kept = false;
    recent_.erase(found->second->place);
    fetches_.erase(found);
    return kept;
}

void SamplePool::keep_sessions(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stopping_.wait_for(lock, stop, kKeeperPeriod, [] { return false; }) && !stop.stop_requested()) {
        std::vector<SharedSample> dropped;
        const std::int64_t now_ns = clock_.now_ns();
        for (auto next = recent_.begin(); next != recent_.end();) {
            const std::uint64_t sample = *next++;
            const Fetch& fetch = *fetches_.at(sample);
            if (now_ns - fetch.used_ns > kept_ns(sample, fetch)) dropped.push_back(forget(sample));
        }
        std::vector<Reader*> readers;
        readers.swap(idle_);
        is_keeping_ = true;
        lock.unlock();
        dropped.clear();
        for (Reader* const reader : readers) {
            destroy_unused(*reader);
            // A daemon that is away is waited for by the next fetch, which reports what is wrong.
            static_cast<void>(reader->core->tick());
        }
        lock.lock();
        idle_.insert(idle_.begin(), readers.begin(), readers.end());
        is_keeping_ = false;
        changed_.notify_all();
    }
}

}  // namespace larder::mount
