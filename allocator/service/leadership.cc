#include "allocator/service/leadership.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/server/logging.h"

namespace larder::allocator {
namespace {

constexpr std::int64_t kLeaseUnit_ns = 1'000'000'000;
// A member of etcd that led, and has been cut off, may renew a lease for another second, until it notices.
constexpr std::int64_t kMargin_ns = 3 * kLeaseUnit_ns / 2;
constexpr const char* kNotRenewed = "etcd has not renewed its lease in time";
// A trouble names the member of etcd that has it, so an outage may have several for each member.
constexpr std::size_t kTroublesMax = 32;
constexpr auto kPauseOfLeader = std::chrono::milliseconds(1000);
constexpr auto kPauseOfOthers = std::chrono::milliseconds(500);

EtcdOptions with_timeout(EtcdOptions etcd, std::int64_t lease_ns) {
    etcd.timeout_ms = lease_ns / 5'000'000;
    return etcd;
}

}  // namespace

Leadership::Leadership(LeadershipOptions options, std::function<void()> changed)
    : options_(std::move(options)),
      changed_(std::move(changed)),
      etcd_(with_timeout(options_.etcd, options_.lease_ns)),
      thread_([this] { run(); }) {
    ::pthread_setname_np(thread_.native_handle(), "leadership");
}

Leadership::~Leadership() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

bool Leadership::leads() const {
    return boot_time_ns() < leads_until_ns_;
}

// True if this allocator led, and its time has passed.
bool Leadership::is_over() const {
    return leads_until_ns_ != 0 && !leads();
}

std::string Leadership::leader() const {
    const std::lock_guard lock(mutex_);
    return leader_;
}

EtcdFence Leadership::fence() const {
    const std::int64_t revision = create_revision_;
    return {.key = kLeaderKey, .create_revision = revision, .is_held = [this, revision] {
                return revision != 0 && create_revision_ == revision && leads();
            }};
}

void Leadership::resign() {
    leads_until_ns_ = 0;
    {
        const std::lock_guard lock(mutex_);
        resigning_ = true;
    }
    wake_.notify_one();
}

void Leadership::run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        const bool resigns = std::exchange(resigning_, false);
        lock.unlock();
        if (resigns) {
            lose("it has resigned");
            stands_from_ns_ = boot_time_ns() + options_.lease_ns;
        }
        step();
        lock.lock();
        const std::int64_t until_ns = leads_until_ns_;
        const std::chrono::nanoseconds left(until_ns - boot_time_ns());
        wake_.wait_for(lock, until_ns != 0 ? std::min<std::chrono::nanoseconds>(kPauseOfLeader, left) : kPauseOfOthers,
                       [this] { return stopping_ || resigning_; });
    }
    lock.unlock();
    leads_until_ns_ = 0;
    // Without an answer the lease ends by itself.
    if (lease_ != 0) static_cast<void>(etcd_.revoke_lease(lease_));
}

void Leadership::step() {
    // Checked before etcd is asked, too: a term that is over is never extended.
    if (is_over()) lose(kNotRenewed);
    // Read before etcd is asked: the lease is renewed at this time at the earliest.
    renew(boot_time_ns());
    if (is_over()) lose(kNotRenewed);
}

void Leadership::renew(std::int64_t sent_ns) {
    if (lease_ == 0) {
        const auto granted = etcd_.grant_lease(options_.lease_ns / kLeaseUnit_ns);
        if (!granted) return note(granted.error());
        lease_ = *granted;
    } else {
        const auto seconds = etcd_.keep_lease(lease_);
        if (!seconds) return note(seconds.error());
        if (*seconds == 0) {
            lease_ = 0;
            return lose("its lease has expired");
        }
    }
    const std::int64_t until_ns = sent_ns + options_.lease_ns - kMargin_ns;
    if (leads_until_ns_ != 0) return check_key(until_ns);
    if (boot_time_ns() >= stands_from_ns_) stand(until_ns);
}

void Leadership::stand(std::int64_t until_ns) {
    const auto key = etcd_.create(kLeaderKey, options_.name, lease_);
    if (!key) return note(key.error());
    if (!etcd_answers_.exchange(true)) log_info("etcd can be used again");
    set_leader(key->value);
    if (key->lease != lease_) return;
    create_revision_ = key->create_revision;
    leads_until_ns_ = until_ns;
    log_info("this allocator leads", {{"name", options_.name}, {"term", key->create_revision}});
    changed_();
}

// Someone may have removed the key, by revoking the lease for example.
void Leadership::check_key(std::int64_t until_ns) {
    const auto key = etcd_.get(kLeaderKey);
    if (!key) return note(key.error());
    if (!etcd_answers_.exchange(true)) log_info("etcd can be used again");
    if (!*key || (*key)->create_revision != create_revision_) return lose("the leader's key is no longer its own");
    // resign() may have set 0 meanwhile, which stays.
    std::int64_t before_ns = leads_until_ns_;
    if (before_ns != 0 && boot_time_ns() < before_ns) leads_until_ns_.compare_exchange_strong(before_ns, until_ns);
}

void Leadership::lose(const std::string& why) {
    const bool led = leads_until_ns_.exchange(0) != 0;
    create_revision_ = 0;
    set_leader("");
    if (led) log_warn("this allocator no longer leads", {{"name", options_.name}, {"why", why}});
    changed_();
    // The next term has a lease of its own, so that nothing written for this one counts in it.
    if (lease_ != 0) static_cast<void>(etcd_.revoke_lease(std::exchange(lease_, 0)));
}

void Leadership::note(const Error& error) {
    if (etcd_answers_.exchange(false)) troubles_.clear();
    if (troubles_.size() < kTroublesMax && troubles_.insert(error.message).second) {
        log_warn("etcd cannot be used", {{"error", error.message}});
    }
}

void Leadership::set_leader(std::string name) {
    const std::lock_guard lock(mutex_);
    leader_ = std::move(name);
}

}  // namespace larder::allocator
