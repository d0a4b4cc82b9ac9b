#include "tests/campaign/seeds/simulated_engine.h"

#include <algorithm>
#include <bit>

namespace larder::campaign {

using scheduler::EngineEvent;
using scheduler::EngineJob;
using scheduler::JobId;

namespace {

std::string title(const std::pair<JobId, std::uint32_t>& key) {
    return "attempt " + std::to_string(key.second) + " of job " + std::to_string(key.first);
}

}  // namespace

// --- the connection

void Machines::Connection::start(const EngineJob& job) {
    watched_[job.job] = {.attempt = job.attempt};
    machines_.start(job);
}

void Machines::Connection::adopt(const EngineJob& job) {
    watched_[job.job] = {.attempt = job.attempt, .start_reported = true};
}

void Machines::Connection::stop(JobId job, std::uint32_t attempt) {
    const auto at = watched_.find(job);
    if (at != watched_.end() && at->second.attempt == attempt) machines_.stop({job, attempt});
}

std::vector<scheduler::AttemptName> Machines::Connection::list() const {
    std::vector<scheduler::AttemptName> listed;
    for (const auto& [key, attempt] : machines_.attempts_) {
        if (attempt.state == State::ended || attempt.state == State::lost) continue;
        listed.push_back({.queue = "", .job = key.first, .attempt = key.second});
    }
    return listed;
}

std::vector<EngineEvent> Machines::Connection::poll() {
    std::vector<EngineEvent> events;
    for (auto at = watched_.begin(); at != watched_.end();) {
        auto& [job, watched] = *at;
        EngineEvent event{.job = job, .attempt = watched.attempt};
        const auto found = machines_.attempts_.find({job, watched.attempt});
        if (found == machines_.attempts_.end()) {
            event.kind = EngineEvent::Kind::lost;
            event.message = "nothing is known of it";
        } else {
            const Attempt& attempt = found->second;
            if (attempt.began && !std::exchange(watched.start_reported, true)) events.push_back(event);
            if (attempt.state != State::ended && attempt.state != State::lost) {
                ++at;
                continue;
            }
            event.kind = attempt.state == State::lost ? EngineEvent::Kind::lost : EngineEvent::Kind::ended;
            event.exit_code = attempt.exit_code;
            event.exit_signal = attempt.exit_signal;
            event.was_stopping = attempt.was_stopping;
            if (attempt.state == State::lost) event.message = "its machine is gone";
        }
        events.push_back(event);
        at = watched_.erase(at);
    }
    return events;
}

void Machines::Connection::forget(JobId job) {
    std::erase_if(machines_.attempts_, [&](const auto& attempt) { return attempt.first.first == job; });
    watched_.erase(job);
}

// --- the machines

void Machines::start(const EngineJob& job) {
    const Key key{job.job, job.attempt};
    if (attempts_.contains(key)) return;
    if (ended_.contains(job.job)) return around_.events.fail(title(key) + " begins after the job has ended");
    for (const auto& [other_key, other] : attempts_) {
        if (other.state != State::claimed && other.state != State::running) continue;
        if (other_key.first == job.job)
            return around_.events.fail(title(key) + " begins while " + title(other_key) + " runs");
        for (const scheduler::NamedGpus& share : job.gpus) {
            for (const scheduler::NamedGpus& taken : other.gpus) {
                if (share.node == taken.node && (share.gpus & taken.gpus) != 0)
                    return around_.events.fail(title(key) + " gets GPUs of " + title(other_key) + ", which runs");
            }
        }
    }
    Attempt& attempt = attempts_[key];
    attempt.gpus = job.gpus;
    attempt.program = job.environment.at("LARDER_JOB");
    around_.events.after(around_.random.between(20 * kMillisecond_ns, 500 * kMillisecond_ns),
                         [this, key] { begin(key); });
}

void Machines::begin(const Key& key) {
    const auto found = attempts_.find(key);
    if (found == attempts_.end() || found->second.state != State::claimed) return;
    Attempt& attempt = found->second;
    std::vector<int> nodes;
    for (const scheduler::NamedGpus& share : attempt.gpus) {
        const int node = std::stoi(share.node.substr(share.node.find('-') + 1));
        nodes.insert(nodes.end(), static_cast<std::size_t>(std::popcount(share.gpus)), node);
    }
    attempt.state = State::running;
    attempt.began = true;
    attempt.training =
        std::make_unique<Training>(around_, *programs_.at(attempt.program), std::move(nodes),
                                   [this, key](int exit_code) { end(key, State::ended, exit_code, std::nullopt); });
}

void Machines::stop(const Key& key) {
    const auto [found, is_new] = attempts_.try_emplace(key);
    Attempt& attempt = found->second;
    if (attempt.state == State::claimed) {
        // It will never begin.
        attempt.was_stopping = true;
        return end(key, State::ended, std::nullopt, std::nullopt);
    }
    if (attempt.state != State::running || std::exchange(attempt.told_to_stop, true)) return;
    around_.events.after(around_.random.between(0, 3 * kSecond_ns), [this, key] {
        const auto at = attempts_.find(key);
        if (at == attempts_.end() || at->second.state != State::running) return;
        at->second.was_stopping = true;
        end(key, State::ended, std::nullopt, 15);
    });
}

void Machines::end(const Key& key, State state, std::optional<int> exit_code, std::optional<int> exit_signal) {
    const auto found = attempts_.find(key);
    if (found == attempts_.end()) return;
    Attempt& attempt = found->second;
    // The run may be what calls this, so it is destroyed a moment later.
    around_.events.after(0, [over = std::shared_ptr<Training>(std::move(attempt.training))] {});
    attempt.state = state;
    attempt.exit_code = exit_code;
    attempt.exit_signal = exit_signal;
    around_.events.trace(30, [&] {
        return title(key) + (state == State::lost ? " is lost" : " ends") + (attempt.was_stopping ? ", as told" : "");
    });
}

bool Machines::crash_one() {
    std::vector<Key> keys;
    for (const auto& [key, attempt] : attempts_) {
        if (attempt.state == State::running) keys.push_back(key);
    }
    if (keys.empty()) return false;
    // A lost attempt is tried again, unless that happens five times in a row.
    end(keys[around_.random.below(keys.size())], State::lost, std::nullopt, std::nullopt);
    return true;
}

void Machines::lose_machine(int node) {
    const std::string name = "node-" + std::to_string(node);
    for (auto& [key, attempt] : attempts_) {
        if (attempt.state != State::claimed && attempt.state != State::running) continue;
        if (std::ranges::find(attempt.gpus, name, &scheduler::NamedGpus::node) == attempt.gpus.end()) continue;
        end(key, State::lost, std::nullopt, std::nullopt);
    }
}

std::size_t Machines::running() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(attempts_, [](const auto& attempt) { return attempt.second.state == State::running; }));
}

std::vector<const Program*> Machines::running_programs() const {
    std::vector<const Program*> programs;
    for (const auto& [key, attempt] : attempts_) {
        if (attempt.state == State::running) programs.push_back(programs_.at(attempt.program).get());
    }
    return programs;
}

}  // namespace larder::campaign
