#include "cache/remote/http_transfers.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <semaphore>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/server/libcurl.h"
#include "cache/remote/http_endpoint_state.h"
#include "cache/remote/retry_delay.h"

namespace larder::cache {

namespace {

constexpr std::int64_t kPollMax_ns = 1'000'000'000;
// An object counts as changed after this many answers that say so: a proxy may have mixed up answers.
constexpr unsigned kChangedAnswersNeeded = 2;

}  // namespace

class HttpTransfers::Loop {
public:
    explicit Loop(const HttpTransfersOptions& options)
        : options_(options), multi_(curl_multi_init()), outages_(options.on_outage) {
        LARDER_ASSERT(multi_ != nullptr);
        curl_multi_setopt(multi_, CURLMOPT_MAX_HOST_CONNECTIONS, static_cast<long>(options.connections_max));
        curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(options.connections_max) * 4);
        // The thread inherits this mask, so that other threads handle the signals.
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        thread_ = std::thread([this] { run(); });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Loop() {
        stopping_.store(true);
        curl_multi_wakeup(multi_);
        thread_.join();
        for (HttpGet* get : gets_) {
            if (get->tries.running != nullptr) curl_multi_remove_handle(multi_, get->tries.running->easy());
            if (get->tries.hedge != nullptr) curl_multi_remove_handle(multi_, get->tries.hedge->easy());
        }
        attempts_.clear();
        curl_multi_cleanup(multi_);
    }

    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    void submit(HttpGet& get) {
        HttpGet* head = submitted_.load(std::memory_order_relaxed);
        do {
            get.next = head;
        } while (!submitted_.compare_exchange_weak(head, &get, std::memory_order_release, std::memory_order_relaxed));
        // Only the first entry of the list must wake the loop, because the loop takes the whole list at once.
        if (head == nullptr) curl_multi_wakeup(multi_);
    }

    void cancel(const void* owner) {
        std::unique_lock lock(cancel_mutex_);
        cancels_.push_back(owner);
        const std::uint64_t ticket = ++cancels_requested_;
        curl_multi_wakeup(multi_);
        cancelled_.wait(lock, [&] { return cancels_done_ >= ticket; });
    }

    HttpStatistics statistics() const {
        return {.requests = requests_.load(std::memory_order_relaxed),
                .retries = retries_.load(std::memory_order_relaxed),
                .overloads = overloads_.load(std::memory_order_relaxed),
                .hedges = hedges_.load(std::memory_order_relaxed),
                .hedges_won = hedges_won_.load(std::memory_order_relaxed),
                .outages = outages_.begun()};
    }

    std::vector<HttpOutage> outages() const { return outages_.lasting(); }

private:
    void run() {
        pthread_setname_np(pthread_self(), "larder-http");
        while (!stopping_.load()) {
            now_ns_ = clock_.now_ns();
            take_submitted();
            take_cancels();
            const std::int64_t wake_ns = start_due();
            int running = 0;
            curl_multi_perform(multi_, &running);
            if (take_finished()) continue;
            const std::int64_t wait_ns = std::clamp<std::int64_t>(wake_ns - clock_.now_ns(), 0, kPollMax_ns);
            curl_multi_poll(multi_, nullptr, 0, static_cast<int>((wait_ns + 999'999) / 1'000'000), nullptr);
        }
    }

    void take_submitted() {
        HttpGet* get = submitted_.exchange(nullptr, std::memory_order_acquire);
        HttpGet* in_order = nullptr;
        while (get != nullptr) {
            HttpGet* next = get->next;
            get->next = in_order;
            in_order = get;
            get = next;
        }
        while (in_order != nullptr) {
            get = std::exchange(in_order, in_order->next);
            get->next = nullptr;
            gets_.push_back(get);
            get->tries = {.endpoint = &endpoint_of(*get), .submitted_ns = now_ns_};
            wait_for_turn(*get);
        }
    }

    void wait_for_turn(HttpGet& get) {
        get.tries.waiting_since_ns = now_ns_;
        get.tries.endpoint->waiting.push_back(&get);
    }

    HttpEndpointState& endpoint_of(const HttpGet& get) {
        const auto found = endpoints_.find(get.origin->endpoint());
        if (found != endpoints_.end()) return found->second;
        return endpoints_.try_emplace(get.origin->endpoint(), options_.connections_max).first->second;
    }

    void take_cancels() {
        std::unique_lock lock(cancel_mutex_);
        if (cancels_.empty()) return;
        // The loop may not have seen the owner's latest requests.
        take_submitted();
        for (const void* owner : cancels_) {
            for (std::size_t i = 0; i < gets_.size();) {
                HttpGet& get = *gets_[i];
                if (get.owner != owner) {
                    ++i;
                    continue;
                }
                drop(get);
            }
        }
        cancels_.clear();
        cancels_done_ = cancels_requested_;
        cancelled_.notify_all();
    }

    // Starts all tries that may start. Returns the time at which the next is due.
    std::int64_t start_due() {
        std::int64_t wake_ns = now_ns_ + kPollMax_ns;
        for (HttpGet* get : gets_) {
            if (get->tries.due_ns != 0 && get->tries.due_ns <= now_ns_) {
                get->tries.due_ns = 0;
                wait_for_turn(*get);
            } else if (get->tries.due_ns != 0) {
                wake_ns = std::min(wake_ns, get->tries.due_ns);
            }
            if (options_.hedge) wake_ns = std::min(wake_ns, late_ns(*get));
        }
        for (HttpGet* get : std::exchange(late_, {})) {
            const RemotePayer* payer = get->payer.get();
            const bool paid_for = payer == nullptr || payer->ready_at_ns(get->into.size()) <= now_ns_;
            if (paid_for && get->tries.endpoint->limit.may_start()) hedge(*get);
        }
        for (auto& [name, endpoint] : endpoints_) {
            look_for_outage(name, endpoint);
            give_up_waiting(endpoint);
            while (!endpoint.waiting.empty() && endpoint.limit.may_start()) {
                HttpGet& get = *endpoint.waiting.front();
                endpoint.waiting.pop_front();
                if (get.tries.failing_since_ns != 0) get.tries.failing_since_ns += now_ns_ - get.tries.waiting_since_ns;
                start(get, get.tries.running);
            }
        }
        return wake_ns;
    }

    void look_for_outage(const std::string& name, HttpEndpointState& endpoint) {
        if (endpoint.silent_since_ns == 0) return;
        if (endpoint.is_outage) {
            outages_.tell(name, endpoint.end_forgotten_outage(now_ns_));
        } else if (!is_answering(endpoint)) {
            outages_.tell(name, endpoint.begin_outage_if_silent(now_ns_));
        }
    }

    // The endpoint has answered. If this ends an outage, retries that wait for their backoff are due at once.
    void on_answer(const HttpGet& first) {
        HttpEndpointState& endpoint = *first.tries.endpoint;
        auto ended_outage = endpoint.answered(now_ns_);
        if (!ended_outage) return;
        outages_.tell(first.origin->endpoint(), std::move(ended_outage));
        for (HttpGet* get : gets_) {
            if (get->tries.endpoint == &endpoint && get->tries.due_ns != 0 && !get->tries.has_retry_after)
                get->tries.due_ns = now_ns_;
        }
    }

    // Fails requests that wait for an endpoint that has long been silent: without a turn they would wait forever.
    void give_up_waiting(HttpEndpointState& endpoint) {
        if (endpoint.silent_since_ns == 0 || is_answering(endpoint)) return;
        const auto given_up = std::ranges::stable_partition(endpoint.waiting, [&](const HttpGet* get) {
            return !endpoint.is_given_up(get->tries.submitted_ns, retry_for_ns(*get), now_ns_);
        });
        if (given_up.empty()) return;
        const std::vector<HttpGet*> expired(given_up.begin(), given_up.end());
        endpoint.waiting.erase(given_up.begin(), given_up.end());
        for (HttpGet* get : expired) {
            get->system_errno = endpoint.last_errno;
            get->message = get->url + endpoint.last_failure + "; given up after " + std::to_string(get->attempts) +
                           " tries, because all requests to the server fail";
            end(*get, HttpOutcome::failed);
        }
    }

    // True if an answer has begun to arrive. A long answer may take long to end.
    bool is_answering(const HttpEndpointState& endpoint) const {
        return std::ranges::any_of(gets_, [&](const auto& get) {
            const auto has_begun = [](const HttpAttempt* attempt) {
                return attempt != nullptr && attempt->received_bytes() > 0;
            };
            return get->tries.endpoint == &endpoint && (has_begun(get->tries.running) || has_begun(get->tries.hedge));
        });
    }

    std::int64_t retry_for_ns(const HttpGet& get) const {
        return get.retry_for_ns != 0 ? std::min(get.retry_for_ns, options_.retry_for_ns) : options_.retry_for_ns;
    }

    // Returns the time at which the request will be late. Adds a request that is late already to `late_`.
    std::int64_t late_ns(HttpGet& get) {
        constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
        if (get.tries.running == nullptr || get.tries.hedged || get.ask == HttpRequestKind::text) return kNever;
        const auto late_after_ns = get.tries.endpoint->late_after.ns();
        if (!late_after_ns) return kNever;
        const std::int64_t late_ns = get.tries.running->began_ns() + *late_after_ns;
        if (late_ns > now_ns_) return late_ns;
        late_.push_back(&get);
        return kNever;
    }

    void hedge(HttpGet& get) {
        get.tries.hedged = true;
        if (RemotePayer* payer = get.payer.get()) {
            get.tries.deposit_bytes = get.into.size();
            payer->pay(get.tries.deposit_bytes, now_ns_);
        }
        hedges_.fetch_add(1, std::memory_order_relaxed);
        start(get, get.tries.hedge);
    }

    void start(HttpGet& get, HttpAttempt*& try_slot) {
        HttpAttempt& attempt = take_idle_attempt();
        ++get.attempts;
        requests_.fetch_add(1, std::memory_order_relaxed);
        get.tries.endpoint->limit.started();
        try_slot = &attempt;
        if (auto begun = attempt.begin(get, options_.settings, now_ns_); !begun) {
            get.tries.endpoint->limit.ended();
            refund_deposit(get, try_slot);
            release_attempt(try_slot);
            if (get.tries.running != nullptr) return;
            settle(get, {.kind = Verdict::Kind::refused, .system_errno = EACCES, .message = begun.error().message});
            return;
        }
        const CURLMcode added = curl_multi_add_handle(multi_, attempt.easy());
        LARDER_ASSERT(added == CURLM_OK);
    }

    bool take_finished() {
        bool any = false;
        int left = 0;
        while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
            if (message->msg != CURLMSG_DONE) continue;
            any = true;
            const CURLcode code = message->data.result;
            char* attached = nullptr;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &attached);
            finish_attempt(*reinterpret_cast<HttpAttempt*>(attached), code);
        }
        return any;
    }

    void finish_attempt(HttpAttempt& attempt, CURLcode code) {
        HttpGet& get = attempt.get();
        Verdict verdict = attempt.finish(code);
        now_ns_ = clock_.now_ns();
        HttpEndpointState& endpoint = *get.tries.endpoint;
        if (verdict.kind == Verdict::Kind::overloaded || verdict.system_errno == ETIMEDOUT) {
            overloads_.fetch_add(1, std::memory_order_relaxed);
            endpoint.limit.overloaded(now_ns_);
        } else if (verdict.kind == Verdict::Kind::ok) {
            endpoint.late_after.add(now_ns_ - attempt.began_ns());
            endpoint.limit.succeeded(attempt.first_byte_ns(), now_ns_);
        } else {
            endpoint.limit.ended();
        }
        if (verdict.kind == Verdict::Kind::overloaded || verdict.kind == Verdict::Kind::failed) {
            // Leaves out the URL, because the failure may be reported for other requests.
            endpoint.failed(verdict.message.substr(std::min(get.url.size(), verdict.message.size())),
                            verdict.system_errno, now_ns_);
        } else {
            on_answer(get);
        }
        if (verdict.kind != Verdict::Kind::ok) pay_for(get, attempt);
        const bool was_hedge = &attempt == get.tries.hedge;
        curl_multi_remove_handle(multi_, attempt.easy());
        refund_deposit(get, &attempt);
        release_attempt(was_hedge ? get.tries.hedge : get.tries.running);
        if (verdict.kind != Verdict::Kind::ok) {
            // The other try may still succeed.
            if (get.tries.running != nullptr || get.tries.hedge != nullptr) return;
        } else {
            if (was_hedge) hedges_won_.fetch_add(1, std::memory_order_relaxed);
            end_attempt(get, get.tries.running);
            end_attempt(get, get.tries.hedge);
        }
        settle(get, std::move(verdict));
    }

    // Ends the get or plans the next try, depending on the verdict.
    void settle(HttpGet& get, Verdict verdict) {
        get.message = std::move(verdict.message);
        get.system_errno = verdict.system_errno;
        switch (verdict.kind) {
            case Verdict::Kind::ok: return end(get, HttpOutcome::ok);
            case Verdict::Kind::missing: return end(get, HttpOutcome::missing);
            case Verdict::Kind::refused: return end(get, HttpOutcome::failed);
            case Verdict::Kind::changed:
                if (++get.tries.changes >= kChangedAnswersNeeded) return end(get, HttpOutcome::changed);
                break;
            case Verdict::Kind::failed:
            case Verdict::Kind::overloaded: break;
        }
        if (get.tries.failing_since_ns == 0) get.tries.failing_since_ns = now_ns_;
        ++get.tries.failures;
        const std::int64_t delay_ns = retry_delay_ns(get.tries.failures, random_(), verdict.retry_after_ns);
        if (now_ns_ + delay_ns - get.tries.failing_since_ns > retry_for_ns(get)) {
            get.message += "; given up after " + std::to_string(get.attempts) + " tries";
            return end(get, HttpOutcome::failed);
        }
        retries_.fetch_add(1, std::memory_order_relaxed);
        get.tries.hedged = false;
        get.tries.due_ns = now_ns_ + delay_ns;
        get.tries.has_retry_after = verdict.retry_after_ns > 0;
    }

    // Pays for the bytes of a try that are not the answer.
    void pay_for(HttpGet& get, const HttpAttempt& attempt) {
        const std::uint64_t bytes = attempt.received_bytes();
        get.extra_bytes += bytes;
        if (get.payer != nullptr && bytes > 0) get.payer->pay(bytes, now_ns_);
    }

    void refund_deposit(HttpGet& get, const HttpAttempt* ended) {
        if (ended != get.tries.hedge || get.tries.deposit_bytes == 0) return;
        get.payer->refund(std::exchange(get.tries.deposit_bytes, 0));
    }

    void end(HttpGet& get, HttpOutcome outcome) {
        get.outcome = outcome;
        forget(get);
        get.done(get);
    }

    // Ends a get without calling `done`.
    void drop(HttpGet& get) {
        end_attempt(get, get.tries.running);
        end_attempt(get, get.tries.hedge);
        std::erase(get.tries.endpoint->waiting, &get);
        forget(get);
    }

    void forget(HttpGet& get) {
        const auto found = std::ranges::find(gets_, &get);
        LARDER_ASSERT(found != gets_.end());
        std::swap(*found, gets_.back());
        gets_.pop_back();
    }

    void end_attempt(HttpGet& get, HttpAttempt*& attempt) {
        if (attempt == nullptr) return;
        pay_for(get, *attempt);
        refund_deposit(get, attempt);
        get.tries.endpoint->limit.ended();
        curl_multi_remove_handle(multi_, attempt->easy());
        release_attempt(attempt);
    }

    HttpAttempt& take_idle_attempt() {
        if (idle_ != nullptr) return *std::exchange(idle_, idle_->next);
        attempts_.push_back(std::make_unique<HttpAttempt>());
        return *attempts_.back();
    }

    void release_attempt(HttpAttempt*& attempt) {
        attempt->clear();
        attempt->next = std::exchange(idle_, attempt);
        attempt = nullptr;
    }

    const HttpTransfersOptions options_;
    SteadyClock clock_;
    std::minstd_rand random_{static_cast<std::minstd_rand::result_type>(clock_.now_ns())};
    CURLM* multi_;
    std::atomic<bool> stopping_{false};
    std::atomic<HttpGet*> submitted_{nullptr};
    std::atomic<std::uint64_t> requests_{0};
    std::atomic<std::uint64_t> retries_{0};
    std::atomic<std::uint64_t> overloads_{0};
    std::atomic<std::uint64_t> hedges_{0};
    std::atomic<std::uint64_t> hedges_won_{0};
    HttpOutages outages_;

    std::mutex cancel_mutex_;  // guards the next four members
    std::condition_variable cancelled_;
    std::vector<const void*> cancels_;
    std::uint64_t cancels_requested_ = 0;
    std::uint64_t cancels_done_ = 0;

    // Used on the transfers' thread only.
    std::int64_t now_ns_ = 0;
    std::map<std::string, HttpEndpointState, std::less<>> endpoints_;
    std::vector<HttpGet*> gets_;
    std::vector<std::unique_ptr<HttpAttempt>> attempts_;
    std::vector<HttpGet*> late_;
    HttpAttempt* idle_ = nullptr;

    std::thread thread_;
};

HttpTransfers::HttpTransfers(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
HttpTransfers::~HttpTransfers() = default;

Result<std::unique_ptr<HttpTransfers>> HttpTransfers::start(const HttpTransfersOptions& options) {
    if (auto initialised = init_libcurl(); !initialised) return std::unexpected(initialised.error());
    return std::unique_ptr<HttpTransfers>(new HttpTransfers(std::make_unique<Loop>(options)));
}

void HttpTransfers::submit(HttpGet& get) {
    loop_->submit(get);
}

void HttpTransfers::cancel(const void* owner) {
    loop_->cancel(owner);
}

void HttpTransfers::run(HttpGet& get, const std::stop_token& stop) {
    struct Wait {
        std::counting_semaphore<2> ended{0};  // released by the end of the get, by a stop request, or by both
        std::atomic<bool> done{false};
    } wait;
    get.owner = &wait;
    get.context = &wait;
    get.done = [](HttpGet& ended_get) noexcept {
        auto& waits = *static_cast<Wait*>(ended_get.context);
        waits.done = true;
        waits.ended.release();
    };
    submit(get);
    {
        const std::stop_callback on_stop(stop, [&] {
            cancel(&wait);
            wait.ended.release();
        });
        wait.ended.acquire();
    }
    if (wait.done) return;
    get.outcome = HttpOutcome::cancelled;
    get.message = get.url + ": cancelled";
}

HttpStatistics HttpTransfers::statistics() const {
    return loop_->statistics();
}

std::vector<HttpOutage> HttpTransfers::outages() const {
    return loop_->outages();
}

}  // namespace larder::cache
