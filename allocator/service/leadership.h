#pragma once

// Elects, through etcd, the one allocator of several that serves. Each stands for election with a lease that it renews
// once a second, and the first to create the leader's key leads until its lease ends. A leader that cannot renew stops
// by its own clock before etcd lets another one lead: so two never lead at a time, whatever is stopped or cut off. A
// thread of its own talks to etcd.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/server/etcd.h"
#include "base/server/etcd_rows.h"

namespace larder::allocator {

// Whoever has created this key leads.
inline constexpr const char* kLeaderKey = "leader";

struct LeadershipOptions {
    EtcdOptions etcd;
    std::string name;                       // what clients and operators are told of this allocator
    std::int64_t lease_ns = 5'000'000'000;  // whole seconds, 3 at least
};

class Leadership {
public:
    // `changed` is called on its own thread whenever this allocator begins or ends to lead; it must return soon.
    Leadership(LeadershipOptions options, std::function<void()> changed);
    // Resigns. Waits for etcd's answer, for a few seconds at most.
    ~Leadership();
    Leadership(const Leadership&) = delete;
    Leadership& operator=(const Leadership&) = delete;

    // Any thread. True as long as no other allocator can lead, suspended time counted. A caller that acts on it later
    // checks again. Whoever serves a term uses the term's fence instead.
    bool leads() const;
    // Any thread. The name of the allocator that led when etcd was last asked; empty: none, or unknown.
    std::string leader() const;
    // Any thread. True if etcd has answered when it was last asked.
    bool etcd_answers() const { return etcd_answers_; }
    // Returns the fence of the present term of leadership. It is not held if there is none.
    EtcdFence fence() const;
    // Lets another allocator lead, and stands again after the length of a lease.
    void resign();

private:
    void run();
    void step();
    void renew(std::int64_t sent_ns);
    bool is_over() const;
    void stand(std::int64_t until_ns);
    void check_key(std::int64_t until_ns);
    void lose(const std::string& why);
    void note(const Error& error);
    void set_leader(std::string name);

    const LeadershipOptions options_;
    const std::function<void()> changed_;

    // Used on the own thread.
    EtcdClient etcd_;
    std::int64_t lease_ = 0;           // 0: none
    std::int64_t stands_from_ns_ = 0;  // by boot_time_ns()
    std::set<std::string> troubles_;   // logged since etcd answered last

    std::atomic<bool> etcd_answers_ = true;
    std::atomic<std::int64_t> leads_until_ns_ = 0;   // 0: does not lead
    std::atomic<std::int64_t> create_revision_ = 0;  // of the leader's key, which this allocator created
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::string leader_;
    bool resigning_ = false;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace larder::allocator
