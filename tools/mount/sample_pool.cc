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
constexpr std::uint32_t kAheadMax = 64;  // samples
constexpr std::uint64_t kAheadMax_bytes = 8 << 20;
constexpr std::chrono::milliseconds kKeeperPeriod{250};
constexpr std::chrono::milliseconds kInterruptPeriod{100};

Error interrupted_error() {
    return {.code = ErrorCode::cancelled, .message = "interrupted while waiting for a sample"};
}

}  // namespace

Result<std::unique_ptr<SamplePool>> SamplePool::open(PoolOptions options) {
    auto first = detail::DatasetCore::open(options.connection, {.sequential = true, .may_exceed_budget = true});
    if (!first) return std::unexpected(first.error());
    return std::unique_ptr<SamplePool>(new SamplePool(std::move(options), std::move(*first)));
}

SamplePool::SamplePool(PoolOptions options, std::unique_ptr<detail::DatasetCore> first)
    : options_(std::move(options)), manifest_(first->manifest()) {
    options_.readers_max =
        std::clamp<std::uint64_t>(kPoolMemoryMax_bytes / first->slot_bytes(), 1, options_.readers_max);
    readers_.push_back(std::make_unique<Reader>(Reader{.core = std::move(first), .unused = {}}));
    idle_.push_back(readers_.back().get());
    keeper_ = std::jthread([this](const std::stop_token& stop) { keep_sessions(stop); });
}

SamplePool::~SamplePool() {
    keeper_ = {};
    for (const auto& [sample, fetch] : std::exchange(fetches_, {})) fetch->result.reset();
    for (const auto& reader : readers_) destroy_unused(*reader);
}

Result<std::shared_ptr<const Sample>> SamplePool::get(std::uint64_t sample) {
    std::shared_ptr<Fetch> fetch;  // outlives the lock: the last owner of a sample must not hold it
    std::unique_lock lock(mutex_);
    for (;;) {
        const auto found = fetches_.find(sample);
        if (found == fetches_.end()) return get_absent(sample, lock);
        fetch = found->second;
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

Result<std::shared_ptr<const Sample>> SamplePool::get_absent(std::uint64_t sample, std::unique_lock<std::mutex>& lock) {
    std::vector<std::uint64_t> samples;
    std::vector<std::shared_ptr<Fetch>> fetches;
    for (const std::uint64_t end = sample + length_to_fetch(sample); sample + samples.size() < end;) {
        const std::uint64_t next = sample + samples.size();
        const auto [place, is_new] = fetches_.try_emplace(next);
        if (!is_new) break;
        place->second = std::make_shared<Fetch>(Fetch{.is_requested = samples.empty()});
        fetches.push_back(place->second);
        samples.push_back(next);
    }
    const auto reader = take_reader(lock);
    Result<std::vector<SharedSample>> got;
    if (reader) {
        lock.unlock();
        got = fetch(**reader, samples);
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
    for (std::size_t i = 0; i < fetches.size(); ++i) {
        if (got && i < got->size()) {
            fetches[i]->result = (*got)[i];
            fetches[i]->place = recent_.insert(recent_.end(), sample + i);
            fetches[i]->used_ns = clock_.now_ns();
            fetches[i]->is_kept = true;
        } else {
            fetches[i]->result = std::unexpected(got ? interrupted_error() : got.error());
            fetches_.erase(sample + i);
        }
    }
    while (recent_.size() > kKeptMax) dropped.push_back(forget_oldest());
    lock.unlock();
    changed_.notify_all();
    if (!got) return std::unexpected(got.error());
    return got->front();
}

std::uint32_t SamplePool::length_to_fetch(std::uint64_t sample) {
    const auto found = std::ranges::find(runs_, sample, &Run::next);
    Run run;
    if (found != runs_.end() && found->ahead > 0) {
        run.ahead = std::min(found->ahead * 2, kAheadMax);
        std::rotate(found, found + 1, runs_.end());
    } else {
        run.ahead = 1;
        std::rotate(runs_.begin(), runs_.begin() + 1, runs_.end());
    }
    // At most what fits a part of a reader's memory; a block is fetched whole.
    const std::uint64_t samples_end = manifest().sample_count();
    std::uint32_t length = 1;
    std::uint64_t bytes = 0;
    for (std::uint32_t block = manifest().block_of_sample(sample); length < run.ahead && sample + length < samples_end;
         ++length) {
        const std::uint32_t next = manifest().block_of_sample(sample + length);
        if (next == block) continue;
        block = next;
        bytes += manifest().block_bytes(block);
        if (bytes > kAheadMax_bytes) break;
    }
    run.next = sample + length;
    runs_.back() = run;
    return length;
}

Result<void> SamplePool::wait(std::unique_lock<std::mutex>& lock) {
    changed_.wait_for(lock, kInterruptPeriod);
    if (options_.connection.interrupted != nullptr && options_.connection.interrupted()) {
        return std::unexpected(interrupted_error());
    }
    return {};
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

Result<std::vector<std::shared_ptr<const Sample>>> SamplePool::fetch(Reader& reader,
                                                                     std::vector<std::uint64_t>& samples) {
    for (;;) {
        destroy_unused(reader);
        auto batch = reader.core->fetch(samples);
        if (batch) return share(reader, std::move(*batch));
        const ErrorCode code = batch.error().code;
        if (samples.size() > 1 && code != ErrorCode::cancelled && code != ErrorCode::unavailable) {
            samples.erase(samples.begin() + 1, samples.end());  // retry with the requested sample alone
            continue;
        }
        if (code != ErrorCode::no_space) return std::unexpected(batch.error());
        // Samples that are kept have all of the reader's memory.
        std::unique_lock lock(mutex_);
        SharedSample oldest;
        if (!recent_.empty()) {
            oldest = forget_oldest();
        } else if (auto waited = wait(lock); !waited) {
            return std::unexpected(waited.error());
        }
        lock.unlock();
    }
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
