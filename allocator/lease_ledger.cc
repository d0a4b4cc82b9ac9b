#include "allocator/lease_ledger.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace larder::allocator {
namespace {

constexpr double kReservePart = 0.01;  // of the remote, for all nodes without jobs
// A node that wants so little more than is on record gets it once its record is as old as a lease.
constexpr double kSmallRise = 1.0 / 16;
// A record is lowered once the node takes so much less, or when another node's record needs the room.
constexpr double kLargeFall = 1.0 / 8;
// The rates of a node's jobs are recorded again once one of them differs so much, at most once in a lease's length.
constexpr double kOtherRate = 1.0 / 4;
constexpr double kSameSum = 1e-9;
// In a lease that was carried over: what its node may take besides the rates that are on record.
constexpr const char* kOtherRates = "";

bool are_other_rates(const std::vector<LeasedRate>& recorded, const std::vector<LeasedRate>& now) {
    return !std::ranges::equal(recorded, now, [](const LeasedRate& a, const LeasedRate& b) {
        const double larger = std::max(a.bytes_per_second, b.bytes_per_second);
        return a.job == b.job && std::abs(a.bytes_per_second - b.bytes_per_second) <= kOtherRate * larger;
    });
}

}  // namespace

LeaseLedger::LeaseLedger(double remote_bytes_per_second, double floor_bytes_per_second, std::int64_t duration_ns)
    : remote_(remote_bytes_per_second), floor_(floor_bytes_per_second), duration_ns_(duration_ns) {}

double LeaseLedger::held_by(const Held& held, std::int64_t now_ns) {
    double most = 0;
    for (const Lease& lease : held.leases) {
        most = std::max(most, lease.expires_ns > now_ns ? lease.in_force() : lease.expired());
    }
    return most;
}

double LeaseLedger::leased_by(const Held& held, std::int64_t now_ns) {
    double most = 0;
    for (const Lease& lease : held.leases) {
        if (lease.expires_ns > now_ns && !lease.rates.empty()) most = std::max(most, lease.in_force());
    }
    return most;
}

double LeaseLedger::in_force(std::int64_t now_ns) const {
    double sum = 0;
    for (const auto& [name, held] : nodes_) sum += held_by(held, now_ns);
    return sum;
}

Lease LeaseLedger::lease(const std::string& node, std::vector<LeasedRate> wanted, std::int64_t now_ns,
                         double floor_max_bytes_per_second) {
    const auto at = nodes_.try_emplace(node).first;
    Held& held = at->second;
    recount(now_ns);
    const double others = std::max(0.0, counted_ - held.counted);
    const double free = std::max(0.0, remote_ - others);
    const auto jobs = static_cast<double>(wanted.size());
    const double reserve = kReservePart * remote_ / static_cast<double>(nodes_.size());
    const double floor = wanted.empty() ? std::min({floor_, reserve, free})
                                        : std::min({floor_, floor_max_bytes_per_second, free / jobs});
    Lease lease{.number = ++last_number_,
                .expires_ns = now_ns + duration_ns_,
                .floor_bytes_per_second = floor,
                .rates = std::move(wanted)};
    for (LeasedRate& rate : lease.rates) rate.bytes_per_second = std::max(rate.bytes_per_second, floor);
    lease.wanted_bytes_per_second = lease.sum();
    const double sum = lease.wanted_bytes_per_second;
    const bool is_small_rise = sum > held.on_record() && sum <= held.on_record() * (1 + kSmallRise);
    const bool waits = is_small_rise && now_ns - duration_ns_ < held.recorded_ns;
    if (const double most = waits ? std::min(free, held.on_record()) : free; sum > most) {
        // Floors stay whole; the parts above them shrink in proportion.
        const double part = sum > floor * jobs ? std::max(0.0, most - floor * jobs) / (sum - floor * jobs) : 0;
        for (LeasedRate& rate : lease.rates) rate.bytes_per_second = floor + (rate.bytes_per_second - floor) * part;
        // Other nodes without jobs hold their reserves for good, so asking again would bring nothing.
        lease.cut = free < sum * (1 - 2 * kReservePart);
    }
    held.leases.push_back(lease);
    merge_expired(held, now_ns);
    changed(at);
    return lease;
}

void LeaseLedger::schedule_recount(Nodes::iterator node, std::int64_t at_ns) {
    constexpr std::int64_t kNever_ns = std::numeric_limits<std::int64_t>::max();
    const std::int64_t before_ns = std::exchange(node->second.recount_ns, at_ns);
    if (before_ns == at_ns) return;
    if (before_ns != kNever_ns) recounts_due_.erase({before_ns, node->first});
    if (at_ns != kNever_ns) recounts_due_.emplace(at_ns, node->first);
}

void LeaseLedger::changed(Nodes::iterator node) {
    schedule_recount(node, std::numeric_limits<std::int64_t>::min());
}

void LeaseLedger::recount(std::int64_t now_ns) {
    // Adding up differences rounds, so the sum is made from nothing again after as many of them as there are nodes.
    const bool from_nothing = now_ns < counted_ns_ || recounts_ >= nodes_.size();
    counted_ns_ = now_ns;
    const auto count = [&](Nodes::iterator node) {
        Held& held = node->second;
        held.counted = held_by(held, now_ns);
        held.leased = leased_by(held, now_ns);
        update_slack(node);
        std::int64_t next_ns = std::numeric_limits<std::int64_t>::max();
        for (const Lease& lease : held.leases) {
            if (lease.expires_ns > now_ns) next_ns = std::min(next_ns, lease.expires_ns);
        }
        schedule_recount(node, next_ns);
    };
    if (from_nothing) {
        counted_ = 0;
        on_record_ = 0;
        recounts_ = 0;
        for (auto node = nodes_.begin(); node != nodes_.end(); ++node) {
            count(node);
            counted_ += node->second.counted;
            on_record_ += node->second.on_record();
        }
        return;
    }
    while (!recounts_due_.empty() && recounts_due_.begin()->first <= now_ns) {
        const auto node = nodes_.find(recounts_due_.begin()->second);
        const double before = node->second.counted;
        count(node);
        counted_ += node->second.counted - before;
        ++recounts_;
    }
}

// Only the largest floors of expired leases can still be in use: keep one lease for all of them.
void LeaseLedger::merge_expired(Held& held, std::int64_t now_ns) {
    const auto expired =
        std::ranges::stable_partition(held.leases, [&](const Lease& lease) { return lease.expires_ns > now_ns; });
    if (expired.empty()) return;
    const Lease largest = *std::ranges::max_element(expired, {}, &Lease::expired);
    held.leases.erase(expired.begin(), expired.end());
    held.leases.insert(held.leases.begin(), largest);
}

void LeaseLedger::applied(const std::string& node, std::uint64_t number) {
    const auto found = nodes_.find(node);
    if (found == nodes_.end()) return;
    drop_superseded(found->second, number);
    changed(found);
}

void LeaseLedger::drop_superseded(Held& held, std::uint64_t applied) {
    if (std::ranges::none_of(held.leases, [&](const Lease& lease) { return lease.number == applied; })) return;
    std::erase_if(held.leases, [&](const Lease& lease) { return lease.number < applied; });
}

void LeaseLedger::take_back(const std::string& node, std::uint64_t number) {
    const auto found = nodes_.find(node);
    if (found == nodes_.end()) return;
    std::erase_if(found->second.leases, [&](const Lease& lease) { return lease.number == number; });
    changed(found);
}

void LeaseLedger::restore(const std::string& node, std::vector<Lease> held) {
    for (const Lease& lease : held) skip_numbers_up_to(lease.number);
    const auto at = nodes_.try_emplace(node).first;
    at->second.leases = std::move(held);
    changed(at);
}

std::int64_t LeaseLedger::wait_ns(std::int64_t now_ns) const {
    return now_ns < wait_until_ns_ ? wait_until_ns_ - now_ns : 0;
}

void LeaseLedger::skip_numbers_up_to(std::uint64_t number) {
    last_number_ = std::max(last_number_, number);
}

std::vector<Lease> LeaseLedger::held(const std::string& node) const {
    const auto found = nodes_.find(node);
    return found == nodes_.end() ? std::vector<Lease>() : found->second.leases;
}

double LeaseLedger::expired(const std::string& node) const {
    double most = 0;
    for (const Lease& lease : held(node)) most = std::max(most, lease.expired());
    return most;
}

void LeaseLedger::remove(const std::string& node) {
    const auto found = nodes_.find(node);
    if (found == nodes_.end()) return;
    schedule_recount(found, std::numeric_limits<std::int64_t>::max());
    counted_ -= found->second.counted;
    on_record_ -= found->second.on_record();
    slack_.erase(node);
    nodes_.erase(found);
}

// --- the record

void LeaseLedger::update_slack(Nodes::const_iterator node) {
    if (node->second.on_record() * (1 - kSameSum) > node->second.leased) {
        slack_.insert(node->first);
    } else {
        slack_.erase(node->first);
    }
}

std::optional<RecordedRates> LeaseLedger::record_of(const Held& held) {
    if (held.leased <= 0) return std::nullopt;
    RecordedRates record{.bytes_per_second = held.leased, .rates = held.leases.back().rates};
    std::erase_if(record.rates, [](const LeasedRate& rate) { return rate.job == kOtherRates; });
    return record;
}

bool LeaseLedger::needs_record(const Held& held, std::int64_t now_ns) const {
    if (!held.is_record_known || held.leased > held.on_record()) return true;
    if (held.leased < held.on_record() * (1 - kLargeFall)) return true;
    if (!held.record || held.leases.empty() || now_ns - duration_ns_ < held.recorded_ns) return false;
    return are_other_rates(held.record->rates, held.leases.back().rates);
}

LeaseLedger::Records LeaseLedger::to_record(const std::string& node, std::int64_t now_ns) {
    const auto at = nodes_.find(node);
    if (at == nodes_.end()) return {};
    recount(now_ns);
    const Held& held = at->second;
    if (!needs_record(held, now_ns)) return {};
    Records records{{node, record_of(held)}};
    double sum = on_record_ - held.on_record() + held.leased;
    for (const std::string& other : slack_) {
        if (sum <= remote_ * (1 + kSameSum)) break;
        if (other == node) continue;
        const Held& lowered = nodes_.at(other);
        sum -= lowered.on_record() - lowered.leased;
        records[other] = record_of(lowered);
    }
    return records;
}

void LeaseLedger::recorded(const Records& records, std::int64_t now_ns) {
    for (const auto& [node, record] : records) {
        const auto at = nodes_.try_emplace(node).first;
        Held& held = at->second;
        on_record_ -= held.on_record();
        held.record = record;
        held.is_record_known = true;
        held.recorded_ns = now_ns;
        on_record_ += held.on_record();
        update_slack(at);
    }
}

void LeaseLedger::distrust_records() {
    for (auto& [node, held] : nodes_) held.is_record_known = false;
}

Lease LeaseLedger::carried_over(const RecordedRates& rates, std::int64_t until_ns) {
    // Number 0: superseded by any lease that the node applies.
    Lease lease{.expires_ns = until_ns, .floor_bytes_per_second = 0, .rates = rates.rates};
    // A lease before the last one may still be in force.
    const double more = rates.bytes_per_second - lease.sum();
    if (more > 0) lease.rates.push_back({.job = kOtherRates, .bytes_per_second = more});
    return lease;
}

}  // namespace larder::allocator
