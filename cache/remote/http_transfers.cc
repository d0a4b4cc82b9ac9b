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
#include "cache/remote/http_endpoint.h"
#include "cache/remote/http_flight.h"
#include "cache/remote/retry_delay.h"

namespace larder::cache {

namespace {

constexpr std::int64_t kPollMost_ns = 1'000'000'000;
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
        for (const auto& flight : flights_) {
            if (flight->running != nullptr) curl_multi_remove_handle(multi_, flight->running->easy());
            if (flight->hedge != nullptr) curl_multi_remove_handle(multi_, flight->hedge->easy());
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
        const std::uint64_t ticket = ++cancels_asked_;
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
            const std::int64_t wait_ns = std::clamp<std::int64_t>(wake_ns - clock_.now_ns(), 0, kPollMost_ns);
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
            flights_.push_back(std::make_unique<HttpFlight>());
            HttpFlight& flight = *flights_.back();
            flight.get = get;
            flight.submitted_ns = now_ns_;
            flight.endpoint = &endpoint_of(*get);
            wait_for_turn(flight);
        }
    }

    void wait_for_turn(HttpFlight& flight) {
        flight.waiting_since_ns = now_ns_;
        flight.endpoint->waiting.push_back(&flight);
    }

    HttpEndpoint& endpoint_of(const HttpGet& get) {
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
            for (std::size_t i = 0; i < flights_.size();) {
                HttpFlight& flight = *flights_[i];
                if (flight.get->owner != owner) {
                    ++i;
                    continue;
                }
                drop(flight);
            }
        }
        cancels_.clear();
        cancels_done_ = cancels_asked_;
        cancelled_.notify_all();
    }

    // Starts all tries that may start. Returns the time at which the next is due.
    std::int64_t start_due() {
        std::int64_t wake_ns = now_ns_ + kPollMost_ns;
        for (const auto& flight : flights_) {
            if (flight->due_ns != 0 && flight->due_ns <= now_ns_) {
                flight->due_ns = 0;
                wait_for_turn(*flight);
            } else if (flight->due_ns != 0) {
                wake_ns = std::min(wake_ns, flight->due_ns);
            }
            if (options_.hedge) wake_ns = std::min(wake_ns, late_ns(*flight));
        }
        for (HttpFlight* flight : std::exchange(late_, {})) {
            const RemotePayer* payer = flight->get->payer.get();
            const bool paid_for = payer == nullptr || payer->ready_at_ns(flight->get->into.size()) <= now_ns_;
            if (paid_for && flight->endpoint->limit.may_start()) hedge(*flight);
        }
        for (auto& [name, endpoint] : endpoints_) {
            look_for_outage(name, endpoint);
            give_up_waiting(endpoint);
            while (!endpoint.waiting.empty() && endpoint.limit.may_start()) {
                HttpFlight& flight = *endpoint.waiting.front();
                endpoint.waiting.pop_front();
                if (flight.failing_since_ns != 0) flight.failing_since_ns += now_ns_ - flight.waiting_since_ns;
                start(flight, flight.running);
            }
        }
        return wake_ns;
    }

    void look_for_outage(const std::string& name, HttpEndpoint& endpoint) {
        if (endpoint.silent_since_ns == 0) return;
        if (endpoint.is_outage) {
            outages_.tell(name, endpoint.outage_forgotten(now_ns_));
        } else if (!is_answering(endpoint)) {
            outages_.tell(name, endpoint.outage_begins(now_ns_));
        }
    }

    // The endpoint has answered. If this ends an outage, retries that wait for their backoff are due at once.
    void on_answer(const HttpFlight& first) {
        HttpEndpoint& endpoint = *first.endpoint;
        auto over = endpoint.answered(now_ns_);
        if (!over) return;
        outages_.tell(first.get->origin->endpoint(), std::move(over));
        for (const auto& flight : flights_) {
            if (flight->endpoint == &endpoint && flight->due_ns != 0 && !flight->has_retry_after)
                flight->due_ns = now_ns_;
        }
    }

    // Fails requests that wait for an endpoint that has long been silent: without a turn they would wait forever.
    void give_up_waiting(HttpEndpoint& endpoint) {
        if (endpoint.silent_since_ns == 0 || is_answering(endpoint)) return;
        const auto given_up = std::ranges::stable_partition(endpoint.waiting, [&](const HttpFlight* flight) {
            return !endpoint.is_given_up(flight->submitted_ns, retry_for_ns(*flight->get), now_ns_);
        });
        if (given_up.empty()) return;
        const std::vector<HttpFlight*> over(given_up.begin(), given_up.end());
        endpoint.waiting.erase(given_up.begin(), given_up.end());
        for (HttpFlight* flight : over) {
            HttpGet& get = *flight->get;
            get.system_errno = endpoint.last_errno;
            get.message = get.url + endpoint.last_failure + "; given up after " + std::to_string(get.attempts) +
                          " tries, as all requests to its server fail";
            end(*flight, HttpOutcome::failed);
        }
    }

    // True if an answer has begun to arrive. A long answer may take long to end.
    bool is_answering(const HttpEndpoint& endpoint) const {
        return std::ranges::any_of(flights_, [&](const auto& flight) {
            const auto has_begun = [](const HttpAttempt* of) { return of != nullptr && of->received_bytes() > 0; };
            return flight->endpoint == &endpoint && (has_begun(flight->running) || has_begun(flight->hedge));
        });
    }

    std::int64_t retry_for_ns(const HttpGet& get) const {
        return get.retry_for_ns != 0 ? std::min(get.retry_for_ns, options_.retry_for_ns) : options_.retry_for_ns;
    }

    // Returns the time at which the request will be late. Adds a request that is late already to `late_`.
    std::int64_t late_ns(HttpFlight& flight) {
        constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
        if (flight.running == nullptr || flight.hedged || flight.get->ask == HttpRequestKind::text) return kNever;
        const auto late_after_ns = flight.endpoint->late_after.ns();
        if (!late_after_ns) return kNever;
        const std::int64_t late_ns = flight.running->began_ns() + *late_after_ns;
        if (late_ns > now_ns_) return late_ns;
        late_.push_back(&flight);
        return kNever;
    }

    void hedge(HttpFlight& flight) {
        flight.hedged = true;
        if (RemotePayer* payer = flight.get->payer.get()) {
            flight.deposit_bytes = flight.get->into.size();
            payer->pay(flight.deposit_bytes, now_ns_);
        }
        hedges_.fetch_add(1, std::memory_order_relaxed);
        start(flight, flight.hedge);
    }

    void start(HttpFlight& flight, HttpAttempt*& as) {
        HttpAttempt& attempt = idle_attempt();
        ++flight.get->attempts;
        requests_.fetch_add(1, std::memory_order_relaxed);
        flight.endpoint->limit.started();
        as = &attempt;
        flights_of_attempts_[&attempt] = &flight;
        if (auto begun = attempt.begin(*flight.get, options_.settings, now_ns_); !begun) {
            flight.endpoint->limit.ended();
            refund_deposit(flight, as);
            give_back(as);
            if (flight.running != nullptr) return;
            settle(flight, {.kind = Verdict::Kind::refused, .system_errno = EACCES, .message = begun.error().message});
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
            finished(*reinterpret_cast<HttpAttempt*>(attached), code);
        }
        return any;
    }

    void finished(HttpAttempt& attempt, CURLcode code) {
        HttpFlight& flight = *flights_of_attempts_.at(&attempt);
        Verdict verdict = attempt.finish(code);
        now_ns_ = clock_.now_ns();
        HttpEndpoint& endpoint = *flight.endpoint;
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
            endpoint.failed(verdict.message.substr(std::min(flight.get->url.size(), verdict.message.size())),
                            verdict.system_errno, now_ns_);
        } else {
            on_answer(flight);
        }
        if (verdict.kind != Verdict::Kind::ok) pay_for(flight, attempt);
        const bool was_hedge = &attempt == flight.hedge;
        curl_multi_remove_handle(multi_, attempt.easy());
        refund_deposit(flight, &attempt);
        give_back(was_hedge ? flight.hedge : flight.running);
        if (verdict.kind != Verdict::Kind::ok) {
            // The other try may still succeed.
            if (flight.running != nullptr || flight.hedge != nullptr) return;
        } else {
            if (was_hedge) hedges_won_.fetch_add(1, std::memory_order_relaxed);
            end_attempt(flight, flight.running);
            end_attempt(flight, flight.hedge);
        }
        settle(flight, std::move(verdict));
    }

    // Ends the get or plans the next try, depending on the verdict.
    void settle(HttpFlight& flight, Verdict verdict) {
        HttpGet& get = *flight.get;
        get.message = std::move(verdict.message);
        get.system_errno = verdict.system_errno;
        switch (verdict.kind) {
            case Verdict::Kind::ok: return end(flight, HttpOutcome::ok);
            case Verdict::Kind::missing: return end(flight, HttpOutcome::missing);
            case Verdict::Kind::refused: return end(flight, HttpOutcome::failed);
            case Verdict::Kind::changed:
                if (++flight.changes >= kChangedAnswersNeeded) return end(flight, HttpOutcome::changed);
                break;
            case Verdict::Kind::failed:
            case Verdict::Kind::overloaded: break;
        }
        if (flight.failing_since_ns == 0) flight.failing_since_ns = now_ns_;
        ++flight.failures;
        const std::int64_t delay_ns = retry_delay_ns(flight.failures, draw_(), verdict.retry_after_ns);
        if (now_ns_ + delay_ns - flight.failing_since_ns > retry_for_ns(get)) {
            get.message += "; given up after " + std::to_string(get.attempts) + " tries";
            return end(flight, HttpOutcome::failed);
        }
        retries_.fetch_add(1, std::memory_order_relaxed);
        flight.hedged = false;
        flight.due_ns = now_ns_ + delay_ns;
        flight.has_retry_after = verdict.retry_after_ns > 0;
    }

    // Pays for the bytes of a try that are not the answer.
    void pay_for(HttpFlight& flight, const HttpAttempt& attempt) {
        const std::uint64_t bytes = attempt.received_bytes();
        flight.get->extra_bytes += bytes;
        if (flight.get->payer != nullptr && bytes > 0) flight.get->payer->pay(bytes, now_ns_);
    }

    void refund_deposit(HttpFlight& flight, const HttpAttempt* ended) {
        if (ended != flight.hedge || flight.deposit_bytes == 0) return;
        flight.get->payer->give_back(std::exchange(flight.deposit_bytes, 0));
    }

    void end(HttpFlight& flight, HttpOutcome outcome) {
        HttpGet& get = *flight.get;
        get.outcome = outcome;
        forget(flight);
        get.done(get);
    }

    // Ends a get without calling `done`.
    void drop(HttpFlight& flight) {
        end_attempt(flight, flight.running);
        end_attempt(flight, flight.hedge);
        std::erase(flight.endpoint->waiting, &flight);
        forget(flight);
    }

    void forget(HttpFlight& flight) {
        const auto found = std::ranges::find(flights_, &flight, &std::unique_ptr<HttpFlight>::get);
        LARDER_ASSERT(found != flights_.end());
        std::swap(*found, flights_.back());
        flights_.pop_back();
    }

    void end_attempt(HttpFlight& flight, HttpAttempt*& attempt) {
        if (attempt == nullptr) return;
        pay_for(flight, *attempt);
        refund_deposit(flight, attempt);
        flight.endpoint->limit.ended();
        curl_multi_remove_handle(multi_, attempt->easy());
        give_back(attempt);
    }

    HttpAttempt& idle_attempt() {
        if (idle_ != nullptr) return *std::exchange(idle_, idle_->next);
        attempts_.push_back(std::make_unique<HttpAttempt>());
        return *attempts_.back();
    }

    void give_back(HttpAttempt*& attempt) {
        flights_of_attempts_.erase(attempt);
        attempt->clear();
        attempt->next = std::exchange(idle_, attempt);
        attempt = nullptr;
    }

    const HttpTransfersOptions options_;
    SteadyClock clock_;
    std::minstd_rand draw_{static_cast<std::minstd_rand::result_type>(clock_.now_ns())};
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
    std::uint64_t cancels_asked_ = 0;
    std::uint64_t cancels_done_ = 0;

    // Used on the transfers' thread only.
    std::int64_t now_ns_ = 0;
    std::map<std::string, HttpEndpoint, std::less<>> endpoints_;
    std::vector<std::unique_ptr<HttpFlight>> flights_;
    std::vector<std::unique_ptr<HttpAttempt>> attempts_;
    std::map<const HttpAttempt*, HttpFlight*> flights_of_attempts_;
    std::vector<HttpFlight*> late_;
    HttpAttempt* idle_ = nullptr;

    std::thread thread_;
};

HttpTransfers::HttpTransfers(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
HttpTransfers::~HttpTransfers() = default;

Result<std::unique_ptr<HttpTransfers>> HttpTransfers::start(const HttpTransfersOptions& options) {
    static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (initialised != CURLE_OK) {
        return fail(ErrorCode::internal, std::string("libcurl: ") + curl_easy_strerror(initialised));
    }
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
        std::counting_semaphore<2> over{0};  // released by the end of the get, by a stop request, or by both
        std::atomic<bool> done{false};
    } wait;
    get.owner = &wait;
    get.context = &wait;
    get.done = [](HttpGet& of) noexcept {
        auto& waits = *static_cast<Wait*>(of.context);
        waits.done = true;
        waits.over.release();
    };
    submit(get);
    {
        const std::stop_callback on_stop(stop, [&] {
            cancel(&wait);
            wait.over.release();
        });
        wait.over.acquire();
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
