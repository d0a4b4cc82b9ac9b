#include "allocator/lease_ledger.h"

#include <algorithm>

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
    Held& held = nodes_[node];
    double others = 0;
    for (const auto& [name, other] : nodes_) {
        if (&other != &held) others += held_by(other, now_ns);
    }
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
    return lease;
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
    if (found != nodes_.end()) drop_superseded(found->second, number);
}

void LeaseLedger::drop_superseded(Held& held, std::uint64_t applied) {
    if (std::ranges::none_of(held.leases, [&](const Lease& lease) { return lease.number == applied; })) return;
    std::erase_if(held.leases, [&](const Lease& lease) { return lease.number < applied; });
}

void LeaseLedger::take_back(const std::string& node, std::uint64_t number) {
    const auto found = nodes_.find(node);
    if (found != nodes_.end())
        std::erase_if(found->second.leases, [&](const Lease& lease) { return lease.number == number; });
}

void LeaseLedger::restore(const std::string& node, std::vector<Lease> held) {
    for (const Lease& lease : held) skip_numbers_up_to(lease.number);
    nodes_[node].leases = std::move(held);
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
    nodes_.erase(node);
}

}  // namespace larder::allocator
