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
// A record is lowered for others' sake in a write of so many rows at most, which is one transaction of etcd.
constexpr std::size_t kRowsMax = 90;
// A record has no rates of single jobs if they would take more, so that kRowsMax records are less than 1 MiB.
constexpr std::size_t kRatesBytesMax = 10u << 10;
constexpr std::size_t kRateBytes = 32;  // of a rate beside its job's name, at most
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
                         double floor_max_bytes_per_second, double expired_max_bytes_per_second) {
    const auto at = nodes_.try_emplace(node).first;
    Held& held = at->second;
    recount(now_ns);
    const double others = std::max(0.0, counted_ - held.counted);
    const double free = std::max(0.0, remote_ - others);
    const auto jobs = static_cast<double>(wanted.size());
    const bool cannot_record = now_ns < held.no_rise_until_ns;
    if (cannot_record) floor_max_bytes_per_second = std::min(floor_max_bytes_per_second, held.on_record() / jobs);
    const double reserve = kReservePart * remote_ / static_cast<double>(nodes_.size());
    const double floor =
        wanted.empty()
            ? std::min({floor_, reserve, free, expired_max_bytes_per_second})
            : std::min({floor_, floor_max_bytes_per_second, free / jobs, expired_max_bytes_per_second / jobs});
    Lease lease{.number = ++last_number_,
                .expires_ns = now_ns + duration_ns_,
                .floor_bytes_per_second = floor,
                .rates = std::move(wanted)};
    for (LeasedRate& rate : lease.rates) rate.bytes_per_second = std::max(rate.bytes_per_second, floor);
    lease.wanted_bytes_per_second = lease.sum();
    const double sum = lease.wanted_bytes_per_second;
    const bool is_small_rise = sum > held.on_record() && sum <= held.on_record() * (1 + kSmallRise);
    const bool waits = cannot_record || (is_small_rise && now_ns - duration_ns_ < held.recorded_ns);
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
        held.expired = expired_of(held);
        if (from_nothing) held.counted_next = 0;
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

double LeaseLedger::expired_of(const Held& held) {
    double most = 0;
    for (const Lease& lease : held.leases) most = std::max(most, lease.expired());
    return most;
}

double LeaseLedger::expired(const std::string& node) const {
    const auto found = nodes_.find(node);
    return found == nodes_.end() ? 0 : expired_of(found->second);
}

void LeaseLedger::remove(const std::string& node) {
    const auto found = nodes_.find(node);
    if (found == nodes_.end()) return;
    schedule_recount(found, std::numeric_limits<std::int64_t>::max());
    counted_ -= found->second.counted;
    on_record_ -= found->second.counted_next;
    slack_.erase({found->second.slack, node});
    nodes_.erase(found);
}

// --- the record

void LeaseLedger::update_slack(Nodes::iterator node) {
    Held& held = node->second;
    const double counted_next = std::max(held.on_record(), held.expired);
    on_record_ += counted_next - std::exchange(held.counted_next, counted_next);
    const double freed = counted_next - std::max(held.leased, held.expired);
    const double slack = freed > kSameSum * counted_next ? freed : 0;
    const double before = std::exchange(held.slack, slack);
    if (before == slack) return;
    if (before > 0) slack_.erase({before, node->first});
    if (slack > 0) slack_.emplace(slack, node->first);
}

std::optional<RecordedRates> LeaseLedger::record_of(const Held& held) {
    if (held.leased <= 0) return std::nullopt;
    RecordedRates record{.bytes_per_second = held.leased, .rates = held.leases.back().rates, .state_directory = 0};
    std::erase_if(record.rates, [](const LeasedRate& rate) { return rate.job == kOtherRates; });
    std::ranges::sort(record.rates, {}, &LeasedRate::job);
    std::size_t bytes = 0;
    for (const LeasedRate& rate : record.rates) bytes += rate.job.size() + kRateBytes;
    if (bytes > kRatesBytesMax) record.rates.clear();
    return record;
}

bool LeaseLedger::needs_record(const Held& held, std::int64_t now_ns) const {
    if (!held.is_record_known || held.leased > held.on_record()) return true;
    // Other changes are not urgent.
    if (!held.record || now_ns - duration_ns_ < held.recorded_ns) return false;
    if (held.leased < held.on_record() * (1 - kLargeFall)) return true;
    if (on_record_ > remote_ * (1 + kSameSum) && held.slack > 0) return true;
    const auto record = record_of(held);
    return !record || are_other_rates(held.record->rates, record->rates);
}

LeaseLedger::Records LeaseLedger::to_record(const std::string& node, std::int64_t now_ns) {
    const auto at = nodes_.find(node);
    if (at == nodes_.end()) return {};
    recount(now_ns);
    const Held& held = at->second;
    if (!needs_record(held, now_ns)) return {};
    Records records{{node, record_of(held)}};
    double sum = on_record_ - held.counted_next + std::max(held.leased, held.expired);
    for (auto other = slack_.rbegin(); other != slack_.rend(); ++other) {
        if (sum <= remote_ * (1 + kSameSum) || records.size() == kRowsMax) break;
        if (other->second == node) continue;
        sum -= other->first;
        records[other->second] = record_of(nodes_.at(other->second));
    }
    return records;
}

void LeaseLedger::recorded(const Records& records, std::int64_t now_ns) {
    for (const auto& [node, record] : records) {
        const auto at = nodes_.try_emplace(node).first;
        Held& held = at->second;
        held.record = record;
        held.confirmed = std::min(held.confirmed, held.on_record());
        held.is_record_known = true;
        held.recorded_ns = now_ns;
        update_slack(at);
    }
}

double LeaseLedger::on_record(const std::string& node) const {
    const auto found = nodes_.find(node);
    return found == nodes_.end() ? 0 : found->second.on_record();
}

void LeaseLedger::confirm(const std::string& node) {
    const auto found = nodes_.find(node);
    if (found != nodes_.end()) found->second.confirmed = found->second.on_record();
}

void LeaseLedger::not_recorded(const std::string& node, std::int64_t now_ns) {
    const auto found = nodes_.find(node);
    if (found == nodes_.end() || !found->second.record) return;
    Held& held = found->second;
    if (held.confirmed > 0) {
        held.record->bytes_per_second = held.confirmed;
        held.no_rise_until_ns = now_ns + duration_ns_;
    } else {
        held.record.reset();
        held.is_record_known = false;
    }
    update_slack(found);
}

void LeaseLedger::distrust_record(const std::string& node) {
    const auto found = nodes_.find(node);
    if (found != nodes_.end()) found->second.is_record_known = false;
}

std::vector<std::string> LeaseLedger::records_without_lease(std::int64_t now_ns) {
    recount(now_ns);
    std::vector<std::string> nodes;
    for (const auto& [node, held] : nodes_) {
        if (held.record && held.leased <= 0) nodes.push_back(node);
    }
    return nodes;
}

bool LeaseLedger::has_record_without_lease(const std::string& node, std::int64_t now_ns) {
    recount(now_ns);
    const auto found = nodes_.find(node);
    return found != nodes_.end() && found->second.record && found->second.leased <= 0;
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
