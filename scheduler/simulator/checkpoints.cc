#include "scheduler/simulator/checkpoints.h"

#include <algorithm>
#include <cmath>

namespace larder::scheduler {
namespace {

// A transfer counts as ended if less time than this is left: simulated times of some weeks are no more precise.
constexpr double kInstant_s = 1e-6;

}  // namespace

Checkpoints::Checkpoints(const CheckpointOptions& options, std::size_t jobs) : options_(options), jobs_(jobs) {}

void Checkpoints::begin_transfer(std::uint32_t job, double bytes) {
    transfers_.push_back({.job = job, .bytes_left = bytes, .stands_still = true});
}

void Checkpoints::note_start(std::uint32_t job, double bytes, double remaining_bytes, double now_s) {
    jobs_[job].bytes = bytes;
    jobs_[job].saved_remaining_bytes = remaining_bytes;
    set_due(job, take_time(bytes) || options_.jobs_may_be_lost ? now_s + options_.interval_s : kNever);
}

void Checkpoints::note_stop(std::uint32_t job) {
    set_due(job, kNever);
    std::erase_if(transfers_, [&](const Transfer& transfer) { return transfer.job == job; });
}

double Checkpoints::next_s(double now_s) const {
    double next_s = due_.empty() ? kNever : std::max(now_s, due_.begin()->first);
    for (const Transfer& transfer : transfers_) {
        next_s = std::min(next_s, now_s + std::max(kInstant_s, transfer.bytes_left / bytes_per_second_each()));
    }
    return next_s;
}

std::vector<std::uint32_t> Checkpoints::advance(double seconds) {
    std::vector<std::uint32_t> done;
    if (transfers_.empty()) return done;
    const double moved = bytes_per_second_each() * seconds;
    const double rest = bytes_per_second_each() * kInstant_s;
    std::erase_if(transfers_, [&](Transfer& transfer) {
        transfer.bytes_left -= moved;
        if (transfer.bytes_left > rest) return false;
        JobCheckpoint& job = jobs_[transfer.job];
        if (transfer.stands_still) {
            done.push_back(transfer.job);
        } else {
            job.saved_remaining_bytes = job.written_remaining_bytes;
        }
        return true;
    });
    return done;
}

std::vector<std::uint32_t> Checkpoints::due(double now_s) const {
    std::vector<std::uint32_t> jobs;
    for (const auto& [due_s, job] : due_) {
        if (due_s > now_s) break;
        jobs.push_back(job);
    }
    return jobs;
}

void Checkpoints::write(std::uint32_t job, double remaining_bytes, double now_s) {
    set_due(job, now_s + options_.interval_s);
    const auto is_of_job = [&](const Transfer& transfer) { return transfer.job == job; };
    if (std::ranges::any_of(transfers_, is_of_job)) return;  // the previous one is still in flight
    jobs_[job].written_remaining_bytes = remaining_bytes;
    transfers_.push_back({.job = job, .bytes_left = jobs_[job].bytes});
}

void Checkpoints::note_instant(double until_s,
                               const std::function<double(std::uint32_t job, double at_s)>& remaining_bytes) {
    while (!instant_due_.empty() && instant_due_.begin()->first <= until_s) {
        const auto [due_s, job] = *instant_due_.begin();
        const double last_s = due_s + std::floor((until_s - due_s) / options_.interval_s) * options_.interval_s;
        jobs_[job].saved_remaining_bytes = remaining_bytes(job, last_s);
        set_due(job, std::max(last_s + options_.interval_s, std::nextafter(until_s, kNever)));
    }
}

void Checkpoints::set_due(std::uint32_t job, double due_s) {
    JobCheckpoint& checkpoint = jobs_[job];
    auto& due = take_time(checkpoint.bytes) ? due_ : instant_due_;
    if (checkpoint.due_s < kNever) due.erase({checkpoint.due_s, job});
    checkpoint.due_s = due_s;
    if (due_s < kNever) due.emplace(due_s, job);
}

}  // namespace larder::scheduler
