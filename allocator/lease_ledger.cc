#include "allocator/lease_ledger.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace larder::allocator {
namespace {

constexpr double kReservePart = 0.01;  // of the remote, for all nodes without jobs

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
    if (const double sum = lease.wanted_bytes_per_second; sum > free) {
        // Floors stay whole; the parts above them shrink in proportion.
        const double part = sum > floor * jobs ? std::max(0.0, free - floor * jobs) / (sum - floor * jobs) : 0;
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
        std::int64_t next_ns = std::numeric_limits<std::int64_t>::max();
        for (const Lease& lease : held.leases) {
            if (lease.expires_ns > now_ns) next_ns = std::min(next_ns, lease.expires_ns);
        }
        schedule_recount(node, next_ns);
    };
    if (from_nothing) {
        counted_ = 0;
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
    nodes_.erase(found);
}

}  // namespace larder::allocator
