#include "scheduler/simulator/data_plane.h"

#include <algorithm>
#include <cmath>

#include "allocator/model.h"
#include "base/assert.h"

namespace larder::scheduler {
namespace {

void set_rate(Reader& reader) {
    reader.hit_ratio = rest_hit_ratio(reader);
    reader.rate = allocator::predicted_rate(reader.ideal, reader.bandwidth, reader.hit_ratio);
}

}  // namespace

DataPlane::DataPlane(const SimulationOptions& options, std::span<const DatasetState> datasets, std::uint32_t gpus_all)
    : options_(options),
      datasets_(datasets),
      gpus_all_(gpus_all),
      system_(make_cache_system(options.cache)),
      by_dataset_(datasets.size()) {}

Store& DataPlane::store_for(const SimulatedJob& job) {
    const std::uint32_t dataset = job.state.spec->dataset;
    if (!system_->per_job() && by_dataset_[dataset] != nullptr) return *by_dataset_[dataset];
    auto made = std::make_unique<Store>();
    made->dataset = dataset;
    made->size_bytes = datasets_[dataset].size_bytes;
    Store& store = *made;
    stores_.push_back(std::move(made));
    if (!system_->per_job()) by_dataset_[dataset] = &store;
    return store;
}

void DataPlane::start(SimulatedJob& job, std::uint32_t index) {
    Reader& reader = job.reader;
    reader.job = index;
    reader.weight = job.state.spec->weight;
    reader.started = starts_++;
    reader.bandwidth = 0;
    reader.hit_ratio = 0;
    reader.rate = 0;
    if (job.reads_nothing()) {
        job.store = nullptr;
        return;
    }
    Store& store = store_for(job);
    job.store = &store;
    store.readers.push_back(&reader);
    if (reader.unread_bytes <= 0) {
        begin_epoch(store, reader);
    } else {
        // It goes on within its epoch; of the store's blocks it has read a part like any other.
        reader.unread_cached_bytes =
            std::min(reader.unread_bytes, store.cached_bytes * reader.unread_bytes / store.size_bytes);
    }
}

void DataPlane::stop(SimulatedJob& job, bool dataset_is_done) {
    Store* store = std::exchange(job.store, nullptr);
    job.reader.rate = 0;
    if (store == nullptr) return;
    std::erase(store->readers, &job.reader);
    if (!store->readers.empty() || (!dataset_is_done && !system_->per_job())) return;
    if (by_dataset_[store->dataset] == store) by_dataset_[store->dataset] = nullptr;
    std::erase_if(stores_, [&](const auto& one) { return one.get() == store; });
}

void DataPlane::advance(double seconds, std::span<SimulatedJob* const> running, std::vector<JobOutcome>& outcomes) {
    for (const auto& store : stores_) {
        if (store->readers.empty()) continue;
        read_.clear();
        for (const Reader* reader : store->readers) read_.push_back(reader->rate * seconds);
        if (system_->fluid()) {
            larder::scheduler::advance(*store, read_);
        } else {
            for (std::size_t i = 0; i < read_.size(); ++i) {
                store->readers[i]->unread_bytes = std::max(0.0, store->readers[i]->unread_bytes - read_[i]);
            }
        }
    }
    for (SimulatedJob* job : running) {
        Reader& reader = job->reader;
        JobOutcome& outcome = outcomes[reader.job];
        const double bytes = std::min(reader.rate * seconds, reader.remaining_bytes);
        reader.remaining_bytes -= bytes;
        outcome.read_bytes += bytes;
        outcome.remote_bytes += job->reads_nothing() ? 0 : bytes * (1 - reader.hit_ratio);
        const double gpu_s = seconds * job->state.gpus;
        if (job->state.packed_with == nullptr) outcome.allocated_gpu_s += gpu_s;
        if (job->paused) continue;
        if (job->ideal_full > 0) outcome.useful_gpu_s += gpu_s * reader.rate / job->ideal_full;
        outcome.equal_bytes += seconds * (job->reads_nothing() ? reader.ideal : reader.equal_rate);
    }
}

bool DataPlane::end_epoch(SimulatedJob& job) {
    Reader& reader = job.reader;
    const double need_before = reader.ideal * (1 - reader.hit_ratio);
    const double rate_before = reader.rate;
    const bool first = std::exchange(reader.first_epoch, false);
    begin_epoch(*job.store, reader);
    if (!system_->fluid()) return first;
    set_rate(reader);
    // A plan for every epoch of every job would be most of the work, and change nothing where caches are full.
    constexpr double kOfRemote = 0.002;
    constexpr double kOfRate = 0.02;
    const double need = reader.ideal * (1 - reader.hit_ratio);
    return std::abs(need - need_before) > kOfRemote * options_.storage.remote_bytes_per_second ||
           std::abs(reader.rate - rate_before) > kOfRate * rate_before;
}

Result<void> DataPlane::plan(std::span<SimulatedJob* const> running) {
    readers_.clear();
    gpus_.clear();
    planned_.clear();
    for (SimulatedJob* job : running) {
        job->reader.ideal = job->ideal_full;
        if (job->guests > 0 || job->state.packed_with != nullptr) job->reader.ideal *= job->state.spec->packed_rate;
        if (job->store == nullptr) {
            job->reader.rate = job->reader.ideal;
            continue;
        }
        readers_.push_back(&job->reader);
        gpus_.push_back(job->state.gpus);
    }
    for (const auto& store : stores_) {
        for (Reader* reader : store->readers) reader->store = static_cast<std::uint32_t>(planned_.size());
        planned_.push_back(store.get());
    }
    const ReadersState state{
        .readers = readers_, .stores = planned_, .gpus = gpus_, .gpus_all = gpus_all_, .storage = options_.storage};
    set_equal_rates(state);
    if (auto planned = system_->plan(state); !planned) return planned;
    // Who starts up is planned for, as it is by the daemon, but reads nothing yet.
    for (SimulatedJob* job : running) {
        if (job->paused) job->reader.rate = 0;
    }
    return {};
}

bool DataPlane::refresh_shared() {
    if (!system_->fluid()) return false;
    bool changed = false;
    for (const auto& store : stores_) {
        if (store->readers.size() < 2) continue;
        for (Reader* reader : store->readers) {
            const double before = reader->hit_ratio;
            if (reader->rate > 0) set_rate(*reader);
            changed = changed || std::abs(reader->hit_ratio - before) > 1e-3;
        }
    }
    return changed;
}

double DataPlane::next_refresh_s(double now_s) const {
    if (!system_->fluid()) return kNever;
    double soonest = kNever;
    for (const auto& store : stores_) {
        if (store->readers.size() < 2 || !store->fills()) continue;
        double admitted = 0;
        for (const Reader* reader : store->readers) admitted += reader->rate * (1 - reader->hit_ratio);
        if (!(admitted > 0)) continue;
        // An epoch's hit ratio moves by at most this step's part.
        const double step = std::max(std::min(store->size_bytes / 32, store->quota_bytes - store->cached_bytes), 1e6);
        soonest = std::min(soonest, now_s + step / admitted);
    }
    return soonest;
}

double DataPlane::remote_rate(std::span<SimulatedJob* const> running) const {
    double rate = 0;
    for (const SimulatedJob* job : running) {
        if (!job->reads_nothing()) rate += job->reader.rate * (1 - job->reader.hit_ratio);
    }
    return rate;
}

double DataPlane::cached_bytes_all() const {
    double cached = 0;
    for (const auto& store : stores_) cached += store->cached_bytes;
    return cached;
}

double DataPlane::cached_bytes(std::uint32_t dataset) const {
    double cached = 0;
    for (const auto& store : stores_) {
        if (store->dataset == dataset) cached += store->cached_bytes;
    }
    return cached;
}

void DataPlane::describe(std::span<DatasetState> datasets) const {
    if (system_->per_job()) return;
    for (const auto& store : stores_) datasets[store->dataset].cached_bytes = store->cached_bytes;
}

}  // namespace larder::scheduler
