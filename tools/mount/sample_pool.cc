#include "tools/mount/sample_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace larder::mount {
namespace {

constexpr std::int64_t kKept_ns = 1'000'000'000;  // after the last use
constexpr std::size_t kKeptMax = 256;
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
    std::unique_lock lock(mutex_);
    for (;;) {
        const auto found = fetches_.find(sample);
        if (found == fetches_.end()) return get_absent(sample, lock);
        const std::shared_ptr<Fetch> fetch = found->second;
        while (!fetch->result) {
            if (auto waited = wait(lock); !waited) return std::unexpected(waited.error());
        }
        if (*fetch->result) {
            keep(*fetch);
            return *fetch->result;
        }
        // The interruption of the thread that fetched it is not this one's, nor are faults of the samples behind.
        if (fetch->is_first && fetch->result->error().code != ErrorCode::cancelled) return *fetch->result;
    }
}

Result<std::shared_ptr<const Sample>> SamplePool::get_absent(std::uint64_t sample, std::unique_lock<std::mutex>& lock) {
    std::vector<std::uint64_t> samples;
    std::vector<std::shared_ptr<Fetch>> fetches;
    for (const std::uint64_t end = sample + length_to_fetch(sample); sample + samples.size() < end;) {
        const std::uint64_t next = sample + samples.size();
        const auto [place, is_new] = fetches_.try_emplace(next);
        if (!is_new) break;
        place->second = std::make_shared<Fetch>(Fetch{.is_first = samples.empty()});
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
    for (;;) {
        if (!idle_.empty()) {
            Reader* const reader = idle_.back();
            idle_.pop_back();
            return reader;
        }
        if (!is_keeping_ && readers_.size() + opening_ < options_.readers_max) {
            ++opening_;
            lock.unlock();
            auto core = detail::DatasetCore::open(
                options_.connection,
                {.version = manifest().header().version, .sequential = true, .may_exceed_budget = true});
            lock.lock();
            --opening_;
            if (!core) return std::unexpected(core.error());
            readers_.push_back(std::make_unique<Reader>(Reader{.core = std::move(*core), .unused = {}}));
            return readers_.back().get();
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
        const bool is_interrupted = batch.error().code == ErrorCode::cancelled;
        if (samples.size() > 1 && !is_interrupted) {
            samples.resize(1);  // a fault of a sample that nobody asked for is no fault
            continue;
        }
        if (batch.error().code != ErrorCode::no_space) return std::unexpected(batch.error());
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

void SamplePool::keep(Fetch& fetch) {
    fetch.used_ns = clock_.now_ns();
    if (fetch.is_kept) recent_.splice(recent_.end(), recent_, fetch.place);
}

SamplePool::SharedSample SamplePool::forget_oldest() {
    const auto found = fetches_.find(recent_.front());
    SharedSample sample = **found->second->result;
    found->second->is_kept = false;
    fetches_.erase(found);
    recent_.pop_front();
    return sample;
}

void SamplePool::keep_sessions(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stopping_.wait_for(lock, stop, kKeeperPeriod, [] { return false; }) && !stop.stop_requested()) {
        const std::int64_t before_ns = clock_.now_ns() - kKept_ns;
        std::vector<SharedSample> dropped;
        while (!recent_.empty() && fetches_.at(recent_.front())->used_ns < before_ns)
            dropped.push_back(forget_oldest());
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
