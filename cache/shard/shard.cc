#include "cache/shard/shard.h"

#include <algorithm>
#include <map>

#include "base/assert.h"
#include "base/server/logging.h"
#include "cache/shard/block_server.h"
#include "cache/shard/compressor.h"
#include "cache/shard/disk_reads.h"
#include "cache/shard/scan.h"
#include "cache/shard/session.h"
#include "cache/shard/tracer.h"

namespace larder::cache {
namespace {

// The most log lines about breaches per second, so that a client that misbehaves in a loop cannot fill the log. All
// breaches are counted.
constexpr unsigned kBreachLinesMax = 10;

// Statistics include a job for this long after its last session ended.
constexpr std::int64_t kEndedJobRetention_ns = std::int64_t{10} * 60 * 1'000'000'000;

}  // namespace

struct Shard::State {
    State(Device& on_device, const Clock& with_clock, ShardOptions with_options)
        : device(on_device),
          clock(with_clock),
          options(with_options),
          now_ns(with_clock.now_ns()),
          disk_reads(with_options.disk_reads_in_flight_max),
          compressor(on_device, with_options.background_threads),
          digester(on_device, "digest", with_options.background_threads),
          tracer(with_clock) {}

    Device& device;
    const Clock& clock;
    ShardOptions options;
    std::int64_t now_ns;
    DiskReads disk_reads;
    Compressor compressor;
    Background digester;
    Tracer tracer;
    std::uint64_t protocol_violations = 0;
    std::int64_t breach_lines_since_ns = 0;
    unsigned breach_lines = 0;
    std::map<std::uint64_t, std::unique_ptr<BlockServer>> servers;  // by dataset id
    std::vector<std::unique_ptr<BlockServer>> removed;              // kept until nothing of them is in flight
    // Declared after the servers, because a Session's destructor uses its server's job.
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<Session>> closing;  // kept until nothing refers to them
    std::map<std::uint64_t, std::unique_ptr<Scan>> scans;
    std::vector<std::unique_ptr<Scan>> stopped_scans;
    std::map<std::uint64_t, std::unique_ptr<Lender>> lenders;  // by dataset id
    std::vector<std::pair<std::uint64_t, std::unique_ptr<Lender>>> stopped_lenders;
    std::map<std::uint64_t, std::unique_ptr<OfferedBlocks>> offered;  // by dataset id
    std::vector<std::unique_ptr<OfferedBlocks>> stopped_offered;

    BlockServer& server(std::uint64_t dataset_id) {
        const auto found = servers.find(dataset_id);
        LARDER_ASSERT(found != servers.end());
        return *found->second;
    }

    void watch(Session& session);
    void on_request_event(Session& session);
    void on_socket_event(Session& session, std::int32_t result);
    // Ends the session. `breach` says how the client broke the protocol; empty if the session ends for another reason.
    void end(Session& session, const std::string& breach = {});
    void report(const Session& session, const std::string& breach);
    // Counts the busy time of the job's ranks up to now.
    void look_at_ranks(ShardJob& job);
    bool take_requests();
    std::int64_t run_scans();
    void publish();
    void note_posted();
    bool prepare_to_sleep();
    void delete_closed();
    void check_unmap_deadlines();
    std::function<void(const Segment&)> drop_notifier(std::uint64_t dataset_id);
    void stop_scan(std::uint64_t dataset_id);
    void stop_serving_peers(std::uint64_t dataset_id);
    std::size_t in_flight() const;
};

Shard::Shard(Device& device, const Clock& clock, ShardOptions options)
    : state_(std::make_unique<State>(device, clock, options)) {}

Shard::~Shard() {
    // Both read slots, which are freed with the sessions.
    state_->compressor.stop();
    state_->digester.stop();
}

Device& Shard::device() {
    return state_->device;
}

// --- datasets

void Shard::add_dataset(DatasetSetup setup) {
    const std::uint64_t dataset_id = setup.manifest->header().dataset_id;
    auto server = std::make_unique<BlockServer>(std::move(setup),
                                                BlockServer::Shared{.device = state_->device,
                                                                    .disk_reads = state_->disk_reads,
                                                                    .compressor = state_->compressor,
                                                                    .digester = state_->digester,
                                                                    .tracer = state_->tracer,
                                                                    .now_ns = state_->now_ns,
                                                                    .takes_digests = state_->options.takes_digests,
                                                                    .window_bytes = state_->options.window_bytes},
                                                state_->drop_notifier(dataset_id));
    const bool added = state_->servers.emplace(dataset_id, std::move(server)).second;
    LARDER_ASSERT(added);
}

void Shard::add_version(std::uint64_t dataset_id, std::shared_ptr<const protocol::Manifest> manifest) {
    state_->server(dataset_id).add_version(std::move(manifest));
}

void Shard::drop_dead_blocks(std::uint64_t dataset_id, std::span<const std::uint64_t> live) {
    const auto found = state_->servers.find(dataset_id);
    if (found != state_->servers.end()) found->second->drop_dead_blocks(live, state_->drop_notifier(dataset_id));
}

void Shard::remove_dataset(std::uint64_t dataset_id) {
    BlockServer& server = state_->server(dataset_id);
    state_->stop_scan(dataset_id);
    state_->stop_serving_peers(dataset_id);
    for (const auto& session : state_->sessions) {
        if (&session->server() == &server) state_->end(*session);
    }
    server.clear({});
    const auto found = state_->servers.find(dataset_id);
    state_->removed.push_back(std::move(found->second));
    state_->servers.erase(found);
    state_->delete_closed();
}

void Shard::set_quota(std::uint64_t dataset_id, Quota quota) {
    state_->server(dataset_id).set_quota(quota, state_->drop_notifier(dataset_id));
}

std::function<void(const Segment&)> Shard::State::drop_notifier(std::uint64_t dataset_id) {
    return [this, dataset_id](const Segment& segment) {
        for (const auto& session : sessions) {
            if (session->server().dataset_id() != dataset_id) continue;
            session->drop_segment(segment, now_ns + options.segment_unmap_limit_ns);
        }
    };
}

// --- sessions

void Shard::attach(SessionSetup setup) {
    const auto found = state_->servers.find(setup.dataset_id);
    // If the dataset was removed while the client was connecting, the client's socket closes with `setup`.
    if (found == state_->servers.end()) return;
    ShardJob& job = found->second->join(setup.job, setup.bucket, *setup.manifest);
    state_->sessions.push_back(std::make_unique<Session>(std::move(setup), *found->second, job));
    Session& session = *state_->sessions.back();
    session.hot = true;
    state_->watch(session);
}

void Shard::slots_populated(std::uint64_t session_id, std::uint64_t bytes, bool settled) {
    const auto found =
        std::ranges::find(state_->sessions, session_id, [](const auto& session) { return session->id(); });
    if (found == state_->sessions.end() || (*found)->closed()) return;
    Session& session = **found;
    session.slots_populated(bytes);
    if (!settled || bytes <= session.buffer_bytes) return;
    const auto grown = session.slots().subspan(session.buffer_bytes, bytes - session.buffer_bytes);
    session.buffer_added |= state_->device.add_buffer(grown);
    session.buffer_bytes = bytes;
}

void Shard::State::watch(Session& session) {
    session.request_watch.state = this;
    session.socket_watch.state = this;
    session.request_watch.session = &session;
    session.socket_watch.session = &session;
    session.request_watch.operation.done = [](Operation& operation, std::int32_t) noexcept {
        auto& watch = reinterpret_cast<SessionWatch&>(operation);
        static_cast<State*>(watch.state)->on_request_event(*watch.session);
    };
    session.socket_watch.operation.done = [](Operation& operation, std::int32_t result) noexcept {
        auto& watch = reinterpret_cast<SessionWatch&>(operation);
        static_cast<State*>(watch.state)->on_socket_event(*watch.session, result);
    };
    session.refer();
    session.refer();
    device.watch(session.request_event(), session.request_watch.operation);
    device.watch(session.socket(), session.socket_watch.operation);
}

void Shard::State::on_request_event(Session& session) {
    if (session.closed()) {
        session.unrefer();
        return;
    }
    session.take_request_event();
    session.hot = true;
    device.watch(session.request_event(), session.request_watch.operation);
}

void Shard::State::on_socket_event(Session& session, std::int32_t result) {
    if (session.closed()) {
        session.unrefer();
        return;
    }
    if (result < 0 || !session.read_socket()) {
        session.unrefer();
        session.socket_watch.session = nullptr;
        end(session, session.breach());
        return;
    }
    device.watch(session.socket(), session.socket_watch.operation);
}

void Shard::State::end(Session& session, const std::string& breach) {
    if (session.closed()) return;
    if (!breach.empty()) report(session, breach);
    look_at_ranks(session.job());
    session.close(now_ns);
    device.cancel(session.request_watch.operation);
    if (session.socket_watch.session != nullptr) device.cancel(session.socket_watch.operation);
}

void Shard::State::look_at_ranks(ShardJob& job) {
    std::vector<StepTime::Rank> ranks;
    for (const auto& session : sessions) {
        if (session->closed() || &session->job() != &job || !session->is_in_step()) continue;
        ranks.push_back(session->rank());
    }
    if (!ranks.empty()) job.step_time.look(ranks, now_ns);
}

void Shard::State::report(const Session& session, const std::string& breach) {
    ++protocol_violations;
    if (now_ns - breach_lines_since_ns >= 1'000'000'000) {
        breach_lines_since_ns = now_ns;
        breach_lines = 0;
    }
    if (++breach_lines > kBreachLinesMax) return;
    log_warn("a session was closed: its client broke the protocol", {{"reason", breach},
                                                                     {"session", session.id()},
                                                                     {"dataset", session.server().name()},
                                                                     {"job", session.job().name},
                                                                     {"pid", session.pid()},
                                                                     {"uid", session.uid()}});
}

bool Shard::State::take_requests() {
    bool any = false;
    for (const auto& session : sessions) {
        if (!session->hot || session->closed()) continue;
        const Session::Take taken = session->take_requests(options.requests_per_session_turn);
        any |= taken == Session::Take::some;
        if (taken == Session::Take::violation) end(*session, session->breach());
    }
    return any;
}

void Shard::State::publish() {
    for (const auto& session : sessions) {
        if (session->closed()) continue;
        session->publish();
        if (!session->breach().empty()) end(*session, session->breach());
    }
}

// Reads the clock once for all requests answered in the turn that took them.
void Shard::State::note_posted() {
    const auto any = [](const auto& server) { return server.second->any_answered_at_once(); };
    if (std::ranges::none_of(servers, any)) return;
    const std::int64_t took_ns = clock.now_ns() - now_ns;
    for (const auto& [id, server] : servers) server->note_posted(took_ns);
}

// Asks the clients to signal their eventfds. False if a client has posted a request meanwhile.
bool Shard::State::prepare_to_sleep() {
    bool quiet = true;
    for (const auto& session : sessions) {
        if (!session->hot || session->closed()) continue;
        session->set_daemon_sleeping(true);
        if (session->requests_waiting()) {
            session->set_daemon_sleeping(false);
            quiet = false;
        } else {
            session->hot = false;
        }
    }
    return quiet;
}

void Shard::State::delete_closed() {
    for (auto& session : sessions) {
        if (session->closed()) closing.push_back(std::move(session));
    }
    std::erase(sessions, nullptr);
    std::erase_if(closing, [&](const std::unique_ptr<Session>& session) {
        if (!session->unreferenced()) return false;
        if (session->buffer_added) device.remove_buffer(session->slots());
        return true;
    });
    std::erase_if(stopped_scans, [](const std::unique_ptr<Scan>& scan) {
        scan->step();
        return scan->finished();
    });
    std::erase_if(stopped_lenders, [](const auto& lender) { return lender.second->unreferenced(); });
    std::erase_if(stopped_offered, [](const auto& offered_blocks) { return offered_blocks->unreferenced(); });
    if (closing.empty() && stopped_scans.empty() && stopped_lenders.empty() && stopped_offered.empty()) {
        std::erase_if(removed, [](const std::unique_ptr<BlockServer>& server) {
            server->pump();
            return server->in_flight() == 0;
        });
    } else {
        for (const auto& server : removed) server->pump();
    }
}

void Shard::State::check_unmap_deadlines() {
    for (const auto& session : sessions) {
        if (session->unmap_deadline_ns() <= now_ns) end(*session, "a dropped segment was not unmapped in time");
    }
}

// --- scans

Result<void> Shard::start_scan(std::uint64_t dataset_id, ScanKind kind, std::shared_ptr<TokenBucket> bucket,
                               std::shared_ptr<ScanProgress> progress) {
    BlockServer& server = state_->server(dataset_id);
    if (state_->scans.contains(dataset_id)) {
        return fail(ErrorCode::already_exists, "dataset \"" + server.name() + "\" is already being warmed or verified");
    }
    ShardJob& job = server.job(kScanJob, std::move(bucket));
    state_->scans.emplace(dataset_id, std::make_unique<Scan>(kind, server, job, std::move(progress),
                                                             state_->options.scan_blocks_in_flight, state_->now_ns));
    return {};
}

void Shard::State::stop_scan(std::uint64_t dataset_id) {
    const auto found = scans.find(dataset_id);
    if (found == scans.end()) return;
    found->second->stop();
    stopped_scans.push_back(std::move(found->second));
    scans.erase(found);
}

std::int64_t Shard::State::run_scans() {
    std::int64_t wake_ns = kNever_ns;
    for (auto scan = scans.begin(); scan != scans.end();) {
        wake_ns = std::min(wake_ns, scan->second->step());
        scan = scan->second->finished() ? scans.erase(scan) : std::next(scan);
    }
    return wake_ns;
}

// --- traces

Result<void> Shard::start_trace(std::shared_ptr<TraceRecording> recording, std::int64_t limit_ns) {
    TraceRecording& started = *recording;
    if (auto done = state_->tracer.start(std::move(recording), limit_ns); !done) return done;
    bool is_known = false;
    for (const auto& [id, server] : state_->servers) is_known |= server->trace(started.job, started.number);
    if (is_known) return {};
    started.done = nullptr;
    state_->tracer.stop(started);
    state_->tracer.end_due(state_->now_ns, kNever_ns);
    return fail(ErrorCode::not_found, "no job \"" + started.job + "\" has connected to this node");
}

void Shard::stop_trace(const TraceRecording& recording) {
    state_->tracer.stop(recording);
}

// --- other nodes

void Shard::lend(std::uint64_t dataset_id, std::shared_ptr<const protocol::Manifest> manifest, std::uint32_t block,
                 Lend lend) {
    const auto found = state_->servers.find(dataset_id);
    if (found == state_->servers.end()) return lend({});
    std::unique_ptr<Lender>& lender = state_->lenders[dataset_id];
    if (lender == nullptr) {
        ShardJob& job = found->second->job(kPeersJob, std::make_shared<TokenBucket>());
        lender = std::make_unique<Lender>(*found->second, job, state_->options.lending_slots);
    }
    lender->ask(std::move(manifest), block, std::move(lend));
}

void Shard::return_block(std::uint64_t dataset_id, std::uint64_t token) {
    if (const auto found = state_->lenders.find(dataset_id); found != state_->lenders.end()) {
        found->second->return_block(token);
        return;
    }
    const auto stopped =
        std::ranges::find(state_->stopped_lenders, dataset_id, [](const auto& lender) { return lender.first; });
    if (stopped != state_->stopped_lenders.end()) stopped->second->return_block(token);
}

bool Shard::take_offered(std::uint64_t dataset_id, OfferedBlock offered) {
    const auto found = state_->servers.find(dataset_id);
    if (found == state_->servers.end()) return false;
    std::unique_ptr<OfferedBlocks>& offered_blocks = state_->offered[dataset_id];
    if (offered_blocks == nullptr) {
        ShardJob& job = found->second->job(kPeersJob, std::make_shared<TokenBucket>());
        offered_blocks = std::make_unique<OfferedBlocks>(*found->second, job);
    }
    return offered_blocks->take(std::move(offered));
}

Shard::Held Shard::held(std::uint64_t dataset_id) const {
    const auto found = state_->servers.find(dataset_id);
    if (found == state_->servers.end()) return {};
    const DatasetStore& store = found->second->store();
    const StoreUsage usage = store.usage();
    const Quota quota = store.quota();
    const std::uint64_t disk_bytes =
        store.disk_problem() ? 0 : quota.disk_bytes - std::min(quota.disk_bytes, usage.disk_bytes);
    return {.blocks = found->second->held(),
            .digests = found->second->digests(),
            .room_bytes = quota.memory_bytes - std::min(quota.memory_bytes, usage.memory_bytes) + disk_bytes};
}

void Shard::set_peers(std::uint64_t dataset_id, std::shared_ptr<const PeerBlocks> peers) {
    const auto found = state_->servers.find(dataset_id);
    if (found != state_->servers.end()) found->second->set_peers(std::move(peers));
}

void Shard::State::stop_serving_peers(std::uint64_t dataset_id) {
    if (const auto offered_blocks = offered.find(dataset_id); offered_blocks != offered.end()) {
        offered_blocks->second->stop();
        stopped_offered.push_back(std::move(offered_blocks->second));
        offered.erase(offered_blocks);
    }
    const auto found = lenders.find(dataset_id);
    if (found == lenders.end()) return;
    found->second->stop();
    stopped_lenders.emplace_back(dataset_id, std::move(found->second));
    lenders.erase(found);
}

// --- the loop

void Shard::turn(std::int64_t deadline_ns) {
    State& state = *state_;
    state.now_ns = state.clock.now_ns();
    state.compressor.collect();
    state.digester.collect();
    const bool busy = state.take_requests();
    std::int64_t wake_ns = std::min(deadline_ns, state.run_scans());
    for (const auto& [id, server] : state.servers) wake_ns = std::min(wake_ns, server->pump());
    for (const auto& session : state.sessions) session->retry_choices();
    wake_ns = std::min(wake_ns, state.tracer.end_due(state.now_ns, kNever_ns));
    state.publish();
    state.note_posted();
    for (const auto& session : state.sessions) wake_ns = std::min(wake_ns, session->unmap_deadline_ns());
    state.check_unmap_deadlines();
    state.delete_closed();
    const bool may_block = !busy && state.prepare_to_sleep();
    state.device.wait(may_block ? wake_ns : state.now_ns);
    state.now_ns = state.clock.now_ns();
    state.publish();
    state.delete_closed();
}

std::size_t Shard::State::in_flight() const {
    std::size_t count = sessions.size() + closing.size() + stopped_scans.size() + stopped_lenders.size() +
                        stopped_offered.size() + removed.size();
    for (const auto& [id, server] : servers) count += server->in_flight();
    return count;
}

void Shard::drain(std::int64_t deadline_ns) {
    State& state = *state_;
    while (!state.scans.empty()) state.stop_scan(state.scans.begin()->first);
    while (!state.lenders.empty()) state.stop_serving_peers(state.lenders.begin()->first);
    while (!state.offered.empty()) state.stop_serving_peers(state.offered.begin()->first);
    for (const auto& session : state.sessions) state.end(*session);
    constexpr std::int64_t kStep_ns = 10'000'000;
    while (state.in_flight() > 0 && state.clock.now_ns() < deadline_ns) {
        turn(std::min(deadline_ns, state.clock.now_ns() + kStep_ns));
    }
}

void Shard::stop(std::int64_t deadline_ns) {
    State& state = *state_;
    drain(deadline_ns);
    state.tracer.end_all();
    state.compressor.stop();
    state.digester.stop();
    state.device.stop();
    for (auto* sessions : {&state.sessions, &state.closing}) {
        for (const auto& session : *sessions) session->abandon_references();
    }
    for (const auto& scan : state.stopped_scans) scan->abandon_references();
    for (const auto& [id, lender] : state.stopped_lenders) lender->abandon_references();
    for (const auto& offered_blocks : state.stopped_offered) offered_blocks->abandon_references();
}

namespace {

// The ranks of a job on this node that work in step.
struct RanksHere {
    std::uint32_t count = 0;
    std::uint32_t world_size = 0;

    void add(std::uint32_t world) {
        ++count;
        world_size = std::max(world_size, world);
    }
    bool are_some_elsewhere() const { return world_size > count; }
};

}  // namespace

ShardStatistics Shard::statistics() const {
    ShardStatistics statistics;
    statistics.protocol_violations = state_->protocol_violations;
    statistics.scans = static_cast<std::uint32_t>(state_->scans.size());
    statistics.device = state_->device.kind();
    for (const auto& [id, server] : state_->servers) {
        DatasetStatistics dataset = server->statistics();
        std::map<const ShardJob*, JobStatistics> jobs;
        std::map<const ShardJob*, RanksHere> ranks;
        for (const auto& job : server->jobs()) {
            if (job->sessions > 0) state_->look_at_ranks(*job);
            jobs[job.get()] =
                JobStatistics{.job = job->name,
                              .dataset_id = id,
                              .dataset = server->name(),
                              .counters = job->counters,
                              .sessions = job->sessions,
                              .epoch = job->epoch,
                              .unread_bytes = job->unread_bytes,
                              .effective_cache_bytes = job->effective_bytes,
                              .stall_ns = job->ended_stall_ns,
                              .busy_ns = job->ended_busy_ns,
                              .waiting_bytes = job->waiting_bytes(),
                              .samples_delivered = job->ended_samples,
                              .bytes_delivered = job->ended_bytes,
                              .rate_limit_bytes_per_second = job->bucket->rate_bytes_per_second(state_->now_ns),
                              .burst_bytes = job->bucket->burst_bytes()};
        }
        for (const auto& session : state_->sessions) {
            if (session->closed() || &session->server() != server.get()) continue;
            JobStatistics& job = jobs[&session->job()];
            job.stall_ns += session->stall_ns(state_->now_ns);
            job.busy_ns += session->busy_ns();
            job.samples_delivered += session->samples_delivered();
            job.bytes_delivered += session->bytes_delivered();
            job.training_loops += session->training_loops();
            if (session->is_in_step()) ranks[&session->job()].add(session->world_size());
            ++dataset.sessions;
            const std::uint64_t version = session->manifest().header().version;
            if (std::ranges::find(dataset.versions_in_use, version) == dataset.versions_in_use.end()) {
                dataset.versions_in_use.push_back(version);
            }
        }
        for (const auto& [job, here] : ranks) {
            if (here.are_some_elsewhere()) jobs[job].waits = job->step_time.recent();
        }
        for (const auto& job : server->jobs()) {
            const bool forgotten =
                job->idle_since_ns != 0 && state_->now_ns - job->idle_since_ns > kEndedJobRetention_ns;
            if (job->name != kScanJob && !forgotten) statistics.jobs.push_back(jobs[job.get()]);
        }
        statistics.datasets.push_back(std::move(dataset));
    }
    return statistics;
}

}  // namespace larder::cache
