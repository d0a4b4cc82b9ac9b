#include "tests/campaign/seeds/controller.h"

#include <boost/json.hpp>

#include <algorithm>
#include <cstdio>
#include <span>

#include "allocator/service/extension.h"
#include "base/server/json_reader.h"
#include "base/server/json_text.h"
#include "scheduler/live/json.h"
#include "scheduler/placement/free_pool.h"

namespace larder::campaign {

using scheduler::JobId;
using scheduler::LiveRecord;
using scheduler::Phase;

namespace {

constexpr std::int64_t kControllerTick_ns = 100 * kMillisecond_ns;
constexpr double kUnixStart_s = 1.7e9;

std::string key_of(JobId job) {
    char key[32];
    std::snprintf(key, sizeof key, "job/%020llu", static_cast<unsigned long long>(job));
    return key;
}

}  // namespace

// Ticks the scheduler as the daemon's extension does.
class Controller::Ticks final : public allocator::Extension {
public:
    explicit Ticks(Controller& controller) : controller_(controller) {}
    std::span<const Route> routes() const override { return {}; }
    void answer(std::size_t, const HttpRequest&, const std::string&, const HttpRespond&) override {}
    void tick() override {
        controller_.live_->tick(controller_.moment());
        controller_.live_->take_notes();
    }
    void put_status(boost::json::object&) const override {}
    std::string metrics_text() override { return ""; }

private:
    Controller& controller_;
};

Controller::Controller(const ControllerOptions& options, const Surroundings& around, Machines& machines)
    : options_(options), around_(around), machines_(machines), clock_(around.events) {
    clock_.set_offset_ns(around_.random.between(kSecond_ns, 1'000'000 * kSecond_ns));
}

Controller::~Controller() {
    if (up()) end_process();
}

scheduler::Moment Controller::moment() const {
    return {.unix_s = kUnixStart_s + static_cast<double>(around_.events.now_ns()) * 1e-9, .steady_ns = now_ns()};
}

// --- the life of the process

// As StateStore::begin_run in allocator/service/state_store.cc.
allocator::ClusterRecord Controller::begin_run() {
    allocator::StoredState stored;
    for (const auto* rows : {&cluster_rows_, &settings_rows_}) {
        for (const auto& [key, text] : *rows) {
            if (auto read = allocator::read_row(stored, key, text); !read)
                around_.events.fail("a row of the allocator cannot be read: " + read.error().message);
        }
    }
    allocator::StateRun run{.boot = std::to_string(boots_),
                            .lease_ns = options_.cluster.lease_ns,
                            .no_lease_before_ns = stored.run.no_lease_before_ns};
    allocator::ClusterRecord change;
    if (rows_are_new_ || run.boot != stored.run.boot) {
        const std::int64_t wait_ns = std::max(options_.cluster.lease_ns, stored.run.lease_ns);
        run.no_lease_before_ns = now_ns() + wait_ns;
        change = allocator::expire_leases(stored.record, now_ns());
    }
    stored.record.no_lease_before_ns = run.no_lease_before_ns;
    std::vector<Row> rows = allocator::rows_of(change);
    rows.push_back(allocator::row_of(run));
    put(rows, cluster_rows_);
    rows_are_new_ = false;
    return std::move(stored.record);
}

void Controller::start() {
    if (up()) return;
    ++instances_;
    around_.events.trace(40, [&] { return "the allocator starts, with policy " + options_.policy; });
    const allocator::ClusterRecord record = begin_run();
    options_.cluster.peers_etags_above += 1u << 20;
    cluster_ = std::make_unique<allocator::Cluster>(options_.cluster);
    if (auto restored = cluster_->restore(record, now_ns()); !restored)
        around_.events.trace(41, [&] { return "the stored plan cannot be used: " + restored.error().message; });
    cluster_->set_save([this](const allocator::ClusterRecord& change) { return save(change); });
    api_ = std::make_unique<allocator::AllocatorApi>(*cluster_, clock_);
    api_->set_when_durable(
        [this](std::function<void(Result<void>)> then) { write({}, settings_rows_, std::move(then)); },
        [this] {
            return std::ranges::none_of(
                writes_, [this](const Write& write) { return write.into == &settings_rows_ && !write.rows.empty(); });
        });
    engine_ = std::make_unique<Machines::Connection>(machines_);
    scheduler::LiveOptions options{
        .cluster = options_.gpus,
        .tenants = {{.name = "default"}},
        .policy = std::move(scheduler::make_policy(options_.policy, {.round_s = 20}).value()),
        .history_max = 100'000};
    options.placer = std::make_unique<scheduler::FreePool>(options.cluster);
    live_ = std::make_unique<scheduler::LiveScheduler>(
        std::move(options), *engine_, *cluster_,
        [this](const LiveRecord& change, scheduler::LiveScheduler::Done saved) {
            save_queue(change, std::move(saved));
        });
    live_->restore(read_queue(), moment());
    ticks_ = std::make_unique<Ticks>(*this);
    api_->extend(*ticks_);
    after(around_.random.between(0, kControllerTick_ns), [this] { tick(); });
}

void Controller::kill() {
    if (!up()) return;
    around_.events.trace(42, [] { return "the allocator is killed"; });
    end_process();
}

void Controller::cut_power() {
    around_.events.trace(43, [] { return "the allocator loses power"; });
    if (up()) end_process();
    ++boots_;
    if (around_.random.below(4) == 0) {
        // The environment was damaged.
        cluster_rows_.clear();
        rows_are_new_ = true;
    } else {
        cluster_rows_ = cluster_rows_on_disk_;
        rows_are_new_ = cluster_rows_.empty();
    }
    clock_.set_offset_ns(around_.random.between(kSecond_ns, 1'000'000 * kSecond_ns) - around_.events.now_ns());
}

void Controller::end_process() {
    // Some of the waiting writes reach the disk, in order; nobody is told.
    const std::size_t written = around_.random.below(writes_.size() + 1);
    for (std::size_t i = 0; i < written; ++i) put(writes_[i].rows, *writes_[i].into);
    for (std::size_t i = 0; i < written; ++i) {
        if (writes_[i].into != &queue_rows_) continue;
        for (const Row& row : writes_[i].rows) check_recorded(row);
    }
    writes_.clear();
    api_.reset();
    live_.reset();
    ticks_.reset();
    engine_.reset();
    cluster_.reset();
    frozen_until_ns_ = 0;
    deferred_.clear();
}

void Controller::freeze(std::int64_t for_ns) {
    if (!answers()) return;
    around_.events.trace(
        44, [&] { return "the allocator stands still for " + std::to_string(for_ns / kMillisecond_ns) + " ms"; });
    frozen_until_ns_ = around_.events.now_ns() + for_ns;
    around_.events.at(frozen_until_ns_, [this, instance = instances_] {
        if (instance != instances_ || !answers()) return;
        const auto deferred = std::exchange(deferred_, {});
        for (const auto& run : deferred) when_awake(run);
    });
}

void Controller::when_awake(std::function<void()> run) {
    if (!up()) return;
    if (!frozen()) return run();
    deferred_.push_back(std::move(run));
}

void Controller::after(std::int64_t delay_ns, std::function<void()> run) {
    around_.events.after(delay_ns, [this, instance = instances_, run = std::move(run)] {
        if (instance == instances_) when_awake(run);
    });
}

void Controller::tick() {
    after(kControllerTick_ns, [this] { tick(); });
    api_->tick();
    // The kernel writes pages of the cluster's rows whenever it likes.
    if (around_.random.below(100) == 0) cluster_rows_on_disk_ = cluster_rows_;
}

// --- requests

void Controller::ask(const HttpRequest& request, const std::function<void(const HttpResponse&)>& respond) {
    when_awake([this, request, respond] {
        api_->handle(request, [this, request, respond](const HttpResponse& response) {
            around_.events.note(hash_name(response.body));
            respond(response);
        });
    });
}

void Controller::submit(const scheduler::Submission& job, std::function<void(JobId)> acknowledged) {
    if (!answers()) return;
    const scheduler::Submitter operator_of_cluster{.uid = 0, .name = {}, .is_operator = true};
    live_->submit(std::span(&job, 1), operator_of_cluster, moment(),
                  [this, acknowledged](const Result<std::vector<JobId>>& ids) {
                      if (ids) return acknowledged(ids->front());
                      around_.events.trace(45, [&] { return "a job is refused: " + ids.error().message; });
                  });
}

void Controller::cancel(JobId job, std::function<void()> acknowledged) {
    if (!answers() || !live_->queue().jobs().contains(job)) return;
    live_->cancel(job, "the campaign", moment(), [acknowledged](const Result<void>& done) {
        if (done) acknowledged();
    });
}

// --- state

void Controller::put(const std::vector<Row>& rows, std::map<std::string, std::string>& into) {
    for (const Row& row : rows) {
        if (row.text) {
            into[row.key] = *row.text;
        } else {
            into.erase(row.key);
        }
    }
}

Result<void> Controller::save(const allocator::ClusterRecord& change) {
    if (around_.random.chance(faults.save_error)) return fail(ErrorCode::no_space, "the disk is full");
    std::vector<Row> rows = allocator::rows_of(change);
    const auto durable =
        std::ranges::stable_partition(rows, [](const Row& row) { return !allocator::is_durable(row.key); });
    std::vector<Row> durable_rows(durable.begin(), durable.end());
    rows.erase(durable.begin(), durable.end());
    put(rows, cluster_rows_);
    if (!durable_rows.empty()) write(std::move(durable_rows), settings_rows_, nullptr);
    return {};
}

// Writes end in order, later.
void Controller::write(std::vector<Row> rows, std::map<std::string, std::string>& into,
                       std::function<void(Result<void>)> done) {
    writes_.push_back({.rows = std::move(rows), .into = &into, .done = std::move(done)});
    last_write_ns_ =
        std::max(last_write_ns_, around_.events.now_ns()) + around_.random.between(100'000, faults.write_delay_max_ns);
    after(last_write_ns_ - around_.events.now_ns(), [this] {
        Write ended = std::move(writes_.front());
        writes_.pop_front();
        const bool fails = ended.into == &queue_rows_ && around_.random.chance(faults.save_error);
        if (!fails) {
            put(ended.rows, *ended.into);
            if (ended.into == &queue_rows_) {
                for (const Row& row : ended.rows) check_recorded(row);
            }
        }
        if (ended.done) ended.done(fails ? fail(ErrorCode::no_space, "the disk is full") : Result<void>());
    });
}

void Controller::save_queue(const LiveRecord& change, scheduler::LiveScheduler::Done saved) {
    std::vector<Row> rows;
    for (const auto& [id, job] : change.jobs) {
        rows.push_back({key_of(id), std::nullopt});
        if (job) rows.back().text = json_text(scheduler::row_json(*job, options_.gpus.gpu_types));
        if (id <= last_job_) continue;
        last_job_ = id;
        rows.push_back({"numbers", json_text(boost::json::object{{"last", id}})});
    }
    for (const auto& [tenant, use] : change.tenants)
        rows.push_back({"tenant/" + tenant, json_text(scheduler::row_json(use))});
    write(std::move(rows), queue_rows_, std::move(saved));
}

// A job that has ended on record never changes its end. A submission whose write failed is removed, in case it was
// written after all.
void Controller::check_recorded(const Row& row) {
    if (!row.key.starts_with("job/")) return;
    const JobId id = std::stoull(row.key.substr(4));
    if (!row.text) {
        if (!recorded_.contains(id)) return;
        return around_.events.fail("job " + std::to_string(id) + " is dropped from the record");
    }
    const auto object = parse_json_object(*row.text, "a job's row");
    const scheduler::JobRecord job = scheduler::job_of_row(*object, options_.gpus.gpu_types);
    const auto before = recorded_.find(id);
    if (before != recorded_.end() && scheduler::has_ended(before->second) && before->second != job.phase) {
        return around_.events.fail("job " + std::to_string(id) + " was " + std::string(name(before->second)) +
                                   " on record, and is " + std::string(name(job.phase)) + " now");
    }
    if (before == recorded_.end() || before->second != job.phase) {
        around_.events.trace(
            46, [&] { return "job " + std::to_string(id) + " is " + std::string(name(job.phase)) + " on record"; });
    }
    recorded_[id] = job.phase;
    if (!scheduler::has_ended(job.phase)) return;
    end_reasons_[id] = job.end_reason;
    machines_.ended(id);
}

LiveRecord Controller::read_queue() const {
    LiveRecord record;
    for (const auto& [key, text] : queue_rows_) {
        const auto object = parse_json_object(text, "a row of the queue");
        if (key.starts_with("job/")) {
            scheduler::JobRecord job = scheduler::job_of_row(*object, options_.gpus.gpu_types);
            const JobId id = job.id;
            record.jobs[id] = std::move(job);
        } else if (key.starts_with("tenant/")) {
            record.tenants[key.substr(7)] = scheduler::gpu_time_of_row(*object);
        } else {
            record.last_number = object->at("last").to_number<JobId>();
        }
    }
    return record;
}

// --- what is checked

double Controller::bandwidth() const {
    return cluster_ == nullptr ? 0 : cluster_->options().remote_bytes_per_second;
}

std::optional<Phase> Controller::recorded_phase(JobId job) const {
    const auto found = recorded_.find(job);
    return found == recorded_.end() ? std::nullopt : std::optional(found->second);
}

std::string Controller::end_reason(JobId job) const {
    const auto found = end_reasons_.find(job);
    return found == end_reasons_.end() ? "" : found->second;
}

std::size_t Controller::unfinished() const {
    return live_ == nullptr ? 0 : live_->queue().active().size();
}

}  // namespace larder::campaign
