#include "allocator/service/service.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <sys/random.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "allocator/service/allocator_api.h"
#include "allocator/service/allocator_metrics.h"
#include "allocator/service/leadership.h"
#include "allocator/service/state_store.h"
#include "allocator/service/ticks.h"
#include "base/assert.h"
#include "base/server/accounts.h"
#include "base/server/blocking_calls.h"
#include "base/server/etcd_rows.h"
#include "base/server/http.h"
#include "base/server/logging.h"
#include "base/units.h"

namespace larder::allocator {
namespace {

std::vector<AccessRule> rules_of(const Extension* extension) {
    std::vector<AccessRule> rules;
    if (extension == nullptr) return rules;
    for (const Extension::Route& route : extension->routes()) {
        rules.push_back({.method = route.method, .path = route.path, .roles = route.roles});
    }
    return rules;
}

Result<std::shared_ptr<TlsContext>> read_tls(const AllocatorConfig& config) {
    if (config.tls.certificate_file.empty()) return nullptr;
    return make_tls_server(config.tls);
}

// Opens the state, restores the cluster from it, and makes the cluster save to it.
Result<std::unique_ptr<StateStore>> open_and_restore(const AllocatorConfig& config, const OpenRows& shared_rows,
                                                     std::int64_t now_ns, Cluster& cluster) {
    auto store = StateStore::open({.directory = config.state_directory,
                                   .map_bytes = config.state_bytes_max,
                                   .lease_ns = config.cluster.lease_ns,
                                   .lease_holders_end_with_process = config.only_this_process,
                                   .shared_settings = shared_rows},
                                  now_ns);
    if (!store) return store;
    const ClusterRecord& found = (*store)->found();
    if (auto restored = cluster.restore(found, now_ns); !restored) {
        log_error("the stored plan cannot be used; the next report makes a new one",
                  {{"error", restored.error().message}});
    }
    const bool with_rates = static_cast<bool>(shared_rows);
    cluster.set_save([state = store->get()](const ClusterRecord& change) { return state->save(change); }, with_rates);
    if (found.remote && found.remote->configured_bytes_per_second != config.cluster.remote_bytes_per_second) {
        log_warn("remote_bandwidth was changed in the config, so the value set over the API no longer applies",
                 {{"was", format_bytes_per_second(found.remote->bytes_per_second)}});
    }
    log_info("restored the state", {shared_rows ? LogField{"etcd_prefix", config.etcd.options.prefix}
                                                : LogField{"directory", config.state_directory},
                                    {"plan", found.plan_number.value_or(0)},
                                    {"jobs", found.jobs.size()},
                                    {"pins", found.pins.size()},
                                    {"nodes", found.nodes.size()}});
    return store;
}

bool is_for(const HttpRequest& request, std::string_view path) {
    return request.path.size() == 1 && request.path.front() == path;
}

// Empty without a fence.
OpenRows shared_rows_of(const AllocatorConfig& config, const std::optional<EtcdFence>& fence) {
    if (!fence) return {};
    return [etcd = config.etcd.options, fence = *fence](const RowStoreOptions& options) {
        return open_etcd_rows(etcd, fence, options);
    };
}

// `why` may be empty.
HttpResponse not_leading(const std::string& why) {
    return http_error(kHttpMisdirected, name(ErrorCode::unavailable),
                      "this allocator stands by" + (why.empty() ? "" : ": " + why));
}

HttpResponse no_longer_leading() {
    return http_error(Error{ErrorCode::unavailable,
                            "this allocator no longer leads: the request may or may not have been carried out"});
}

OnServiceThread on_thread_of(boost::asio::io_context& context) {
    return [&context](Done call) -> Done {
        return [work = boost::asio::make_work_guard(context), call = std::move(call)](const Result<void>& done) {
            boost::asio::post(work.get_executor(), [call, done] { call(done); });
        };
    };
}

HttpServerOptions http_options(const ServiceLimits& limits, HttpAdmit admit) {
    return {.header_bytes_max = limits.header_bytes,
            .body_bytes_max = limits.body_bytes,
            .connections_max = limits.connections,
            .request_timeout_ms = limits.request_timeout_ns / 1'000'000,
            .idle_timeout_ms = limits.idle_timeout_ns / 1'000'000,
            .connections_per_peer_max = limits.connections_per_peer,
            .requests_per_second_per_peer = static_cast<double>(limits.requests_per_second_per_peer),
            .request_burst_per_peer = static_cast<double>(limits.request_burst_per_peer),
            .admit = std::move(admit)};
}

}  // namespace

namespace {

// Returns the TCP port, or 0 without one.
Result<std::uint16_t> listen(HttpServer& http, const AllocatorConfig& config, const std::shared_ptr<TlsContext>& tls) {
    if (!config.state_directory.empty()) {
        std::error_code error;
        std::filesystem::create_directories(config.state_directory, error);
        if (error) return fail_errno(error.value(), "make state directory " + config.state_directory);
    }
    if (auto listening = http.listen_unix(config.socket, config.socket_mode); !listening) {
        return std::unexpected(listening.error());
    }
    if (config.listen.empty()) return 0;
    const auto port = http.listen_tcp(config.listen, tls);
    if (!port) return port;
    log_info("listening", {{"address", config.listen}, {"port", *port}, {"tls", tls != nullptr}});
    if (tls == nullptr && config.plain_tcp) {
        log_warn("without TLS, anyone who can read the network can read every token", {{"address", config.listen}});
    }
    return port;
}

// A range of etags at random: no other allocator has the same.
ClusterOptions with_own_etags(ClusterOptions options) {
    std::uint32_t range = 0;
    LARDER_ASSERT(::getrandom(&range, sizeof range, 0) == sizeof range);
    options.peers_etags_above = std::uint64_t{range} << 31;
    return options;
}

}  // namespace

struct AllocatorService::Renewed {
    std::vector<Token> tokens;
    std::map<std::string, Grant> certificates;
    LocalRoles local;
    bool anyone_reads = false;
    std::shared_ptr<TlsContext> tls;  // null: no TLS
};

struct AllocatorService::State {
    State(boost::asio::io_context& given_context, const AllocatorConfig& given, const Clock& clock,
          std::optional<EtcdFence> given_term)
        : context(given_context),
          config(given),
          term(std::move(given_term)),
          cluster(with_own_etags(given.cluster)),
          api(cluster, clock),
          ticks(context, api),
          http(context, handler(),
               http_options(given.limits, [this](HttpRequest& request) { return access.admit(request); })) {}

    HttpHandler handler() {
        if (!term) return api.handler();
        return [this, answer = api.handler()](const HttpRequest& request, HttpRespond respond) {
            // Another allocator may lead if this one was stopped for a while.
            if (!term->is_held()) return respond(not_leading(""));
            // A leader that cannot write its rows is well, and nobody could lead in its place while etcd is full.
            if (is_for(request, "healthz") || is_for(request, "metrics")) return answer(request, std::move(respond));
            // A node is told only what is on record already. Its answer may have waited for a plan.
            if (is_for_node(request)) {
                return answer(request, [this, respond = std::move(respond)](HttpResponse response) {
                    respond(term->is_held() ? std::move(response) : not_leading(""));
                });
            }
            const bool may_have_effect = request.method != "GET";
            answer(request, [this, may_have_effect, respond = std::move(respond)](HttpResponse response) {
                respond_when_settled(respond, std::move(response), may_have_effect);
            });
        };
    }

    // True for requests whose answer is a node's part of the plan.
    static bool is_for_node(const HttpRequest& request) {
        const std::vector<std::string>& path = request.path;
        return path == std::vector<std::string>{"v1", "reports"} ||
               (path.size() == 4 && path[1] == "nodes" && path[3] == "plan");
    }

    // An answer may show settings that are not in etcd yet. If this allocator is replaced before they are, nobody may
    // have seen them. So each answer but metrics waits for them.
    void respond_when_settled(const HttpRespond& respond, HttpResponse response, bool may_have_effect) {
        const bool is_settled = store->all_durable() && (extension == nullptr || extension->all_saved());
        if (is_settled) return respond(std::move(response));
        const auto then = [this, respond, response = std::move(response),
                           may_have_effect](const Result<void>& durable) {
            const Done last = [this, respond, response, may_have_effect](const Result<void>& saved) {
                if (term->is_held()) return respond(saved ? response : http_error(saved.error()));
                // 421 would tell the client to ask another allocator, which would do it a second time.
                const bool was_refused = response.status >= 400 && response.status < 500;
                respond(may_have_effect && !was_refused ? no_longer_leading() : not_leading(""));
            };
            if (!durable || extension == nullptr) return last(durable);
            extension->when_saved(last);
        };
        store->when_durable(on_thread_of(context)(then));
    }

    void take_access(const Renewed& renewed) {
        access = Access(renewed.tokens, renewed.certificates, rules_of(extension.get()), renewed.local,
                        renewed.anyone_reads);
    }

    boost::asio::io_context& context;
    AllocatorConfig config;
    std::optional<EtcdFence> term;  // of one of several allocators
    Access access{{}, {}};
    std::unique_ptr<StateStore> store;  // null: memory only; declared before its users
    Cluster cluster;
    AllocatorApi api;
    std::unique_ptr<Extension> extension;  // may be null
    Ticks ticks;
    HttpServer http;
    std::uint16_t tcp_port = 0;
};

AllocatorService::AllocatorService(std::unique_ptr<State> state) : state_(std::move(state)) {}

AllocatorService::~AllocatorService() = default;

Result<std::unique_ptr<AllocatorService>> AllocatorService::start(boost::asio::io_context& context,
                                                                  const AllocatorConfig& config, const Clock& clock,
                                                                  const MakeExtension& extend,
                                                                  const std::optional<EtcdFence>& term) {
    const auto renewed = read_renewed(config);
    if (!renewed) return std::unexpected(renewed.error());
    const std::shared_ptr<TlsContext>& tls = (*renewed)->tls;
    auto state = std::make_unique<State>(context, config, clock, term);
    const OnServiceThread on_thread = on_thread_of(context);
    const OpenRows shared_rows = shared_rows_of(config, term);
    if (shared_rows || !config.state_directory.empty()) {
        auto taken = open_and_restore(config, shared_rows, clock.now_ns(), state->cluster);
        if (!taken) return std::unexpected(taken.error());
        state->store = std::move(*taken);
        StateStore* store = state->store.get();
        state->api.set_when_durable([store, on_thread](Done then) { store->when_durable(on_thread(std::move(then))); },
                                    [store] { return store->all_durable(); },
                                    [store](const std::string& setting) { store->withdraw_setting(setting); });
        state->api.set_when_promised(
            [store, on_thread](const std::string& node, Done then) {
                store->when_promised(node, on_thread([store, node, then = std::move(then)](const Result<void>& saved) {
                                         then(saved);
                                         if (!saved) store->withdraw_promises(node);
                                     }));
            },
            [store](const std::string& node) { return store->is_promised(node); });
    }
    if (extend) {
        auto extension = extend({.cluster = state->cluster,
                                 .events = state->api.events(),
                                 .clock = clock,
                                 .on_thread = on_thread,
                                 .shared_rows = shared_rows});
        if (!extension) return std::unexpected(extension.error());
        state->extension = std::move(*extension);
        state->api.extend(*state->extension);
    }
    state->take_access(**renewed);
    const auto port = listen(state->http, config, tls);
    if (!port) return std::unexpected(port.error());
    state->tcp_port = *port;
    log_info("allocating", {{"socket", config.socket},
                            {"remote", format_bytes_per_second(state->cluster.options().remote_bytes_per_second)},
                            {"lease", format_duration_ns(config.cluster.lease_ns)}});
    return std::unique_ptr<AllocatorService>(new AllocatorService(std::move(state)));
}

Result<std::shared_ptr<const AllocatorService::Renewed>> AllocatorService::read_renewed(const AllocatorConfig& config) {
    auto renewed = std::make_shared<Renewed>();
    renewed->certificates = config.certificates;
    renewed->local.others = config.local_role;
    renewed->anyone_reads = config.anyone_reads;
    for (const auto& [name, role] : config.users) {
        const auto uid = user_id(name);
        if (!uid) return std::unexpected(uid.error().within("user." + name + ".role"));
        renewed->local.by_uid[*uid] = role;
    }
    if (!config.token_file.empty()) {
        auto tokens = read_tokens(config.token_file);
        if (!tokens) return std::unexpected(tokens.error());
        renewed->tokens = std::move(*tokens);
    }
    auto tls = read_tls(config);
    if (!tls) return std::unexpected(tls.error());
    renewed->tls = std::move(*tls);
    return renewed;
}

Result<void> AllocatorService::check_renewed(const Renewed& renewed, const AllocatorConfig& config) {
    if ((renewed.tls == nullptr) == config.tls.certificate_file.empty()) return {};
    return fail(ErrorCode::invalid_argument, "TLS can only be switched on or off by a restart");
}

void AllocatorService::renew_tls(const Renewed& renewed, HttpServer& http) {
    if (renewed.tls != nullptr) http.renew_tls(renewed.tls);
}

void AllocatorService::take(const Renewed& renewed) {
    state_->take_access(renewed);
    state_->api.end_streams();
    renew_tls(renewed, state_->http);
}

Result<void> AllocatorService::reload(const AllocatorConfig& config) {
    const auto renewed = read_renewed(config);
    if (!renewed) return std::unexpected(renewed.error());
    if (auto checked = check_renewed(**renewed, state_->config); !checked) return checked;
    take(**renewed);
    return {};
}

void AllocatorService::stop() {
    state_->ticks.stop();
    state_->http.stop();
}

std::uint16_t AllocatorService::tcp_port() const {
    return state_->tcp_port;
}

namespace {

std::string machine_name() {
    char name[256] = "localhost";
    ::gethostname(name, sizeof name - 1);
    return name;
}

// The program: serves or, as one of several allocators, stands by and serves by turns.
class Program {
public:
    explicit Program(const ServeOptions& options)
        : options_(options),
          config_(options.config),
          end_signals_(context_, SIGTERM, SIGINT),
          reload_signals_(context_, SIGHUP),
          reload_calls_(context_, "reload") {}

    Result<void> run() {
        const EtcdConfig& etcd = config_.etcd;
        if (etcd.options.endpoints.empty()) return serve(std::nullopt);
        const auto is_plain = [](const std::string& endpoint) { return endpoint.starts_with("http://"); };
        if (!etcd.options.user.empty() && std::ranges::any_of(etcd.options.endpoints, is_plain)) {
            log_warn("without TLS, anyone who can read the network can read etcd's password",
                     {{"user", etcd.options.user}});
        }
        leadership_.emplace(LeadershipOptions{.etcd = etcd.options,
                                              .name = etcd.name.empty() ? machine_name() : etcd.name,
                                              .lease_ns = etcd.lease_ns},
                            [this] { boost::asio::post(context_, [this] { end_phase_if_over(); }); });
        while (!is_asked_to_end_) {
            if (auto stood_by = stand_by(); !stood_by) return stood_by;
            if (is_asked_to_end_) break;
            if (auto served = serve(leadership_->fence()); !served) {
                // Another allocator may fare better. If none does, this one says so once in a while.
                log_error("this allocator cannot lead", {{"error", served.error().message}});
                leadership_->resign();
            }
        }
        return {};
    }

private:
    // --- phases

    // Answers all requests with 421, until this allocator leads.
    Result<void> stand_by() {
        const auto tls = read_tls(config_);
        if (!tls) return std::unexpected(tls.error());
        // Refused before their bodies are read: over TCP nobody has been asked for a token yet.
        const auto admit = [this](const HttpRequest& request) -> std::optional<HttpResponse> {
            // A machine that stands by is well, and whoever watches it can tell.
            if (is_for(request, "healthz") || is_for(request, "metrics")) return std::nullopt;
            return not_leading(who_leads(request.peer.has_value()));
        };
        HttpServer http(
            context_,
            [](const HttpRequest& request, const HttpRespond& respond) {
                const bool is_health = is_for(request, "healthz");
                respond({.content_type = is_health ? "text/plain" : kMetricsType,
                         .body = is_health ? "ok\n" : standby_metrics_text()});
            },
            http_options(config_.limits, admit));
        if (const auto port = listen(http, config_, *tls); !port) return std::unexpected(port.error());
        if (options_.standing_by) options_.standing_by();
        standby_http_ = &http;
        run_phase([this] { return leadership_->leads(); },
                  [&] {
                      standby_http_ = nullptr;
                      http.stop();
                  });
        return {};
    }

    // Over TCP nobody has been asked for a token: no name is told.
    std::string who_leads(bool tells_name) const {
        if (!leadership_->etcd_answers()) return "etcd does not answer";
        const std::string leader = leadership_->leader();
        if (leader.empty()) return "none leads at present";
        return (tells_name ? leader : "another one") + " leads";
    }

    // Serves until asked to end or, as one of several, until its term is over.
    Result<void> serve(const std::optional<EtcdFence>& term) {
        const auto service = AllocatorService::start(context_, config_, clock_, options_.extend, term);
        if (!service) return std::unexpected(service.error());
        if (options_.started) options_.started(**service);
        service_ = service->get();
        run_phase([&] { return term && !term->is_held(); },
                  [&] {
                      service_ = nullptr;
                      if (is_asked_to_end_ && options_.stopping) options_.stopping();
                      (*service)->stop();
                  });
        return {};
    }

    // Runs the context until `is_over` or the program is asked to end. Then calls `stop`, and runs the context until
    // all requests are answered.
    void run_phase(std::function<bool()> is_over, std::function<void()> stop) {
        is_over_ = std::move(is_over);
        stop_phase_ = std::move(stop);
        end_signals_.async_wait([this](const boost::system::error_code& error, int signal) {
            if (error) return;
            log_info("asked to end", {{"signal", signal == SIGTERM ? "SIGTERM" : "SIGINT"}});
            is_asked_to_end_ = true;
            end_phase();
        });
        wait_for_reload();
        end_phase_if_over();
        context_.restart();
        // An exception ends the program here. If it were thrown on, the default action of SIGTERM would be in force
        // before the program had ended.
        try {
            context_.run();
        } catch (...) {
            std::terminate();
        }
    }

    void end_phase_if_over() {
        if (stop_phase_ && is_over_()) end_phase();
    }

    void end_phase() {
        if (!stop_phase_) return;
        std::exchange(stop_phase_, nullptr)();
        end_signals_.cancel();
        reload_signals_.cancel();
    }

    // --- reloads

    // Reloads the config on every SIGHUP, without waiting for it.
    void wait_for_reload() {
        reload_signals_.async_wait([this](const boost::system::error_code& error, int) {
            if (error) return;
            reload();
            if (stop_phase_) wait_for_reload();
        });
    }

    void reload() {
        if (!options_.reload) return log_error("there is no config to reload");
        if (unread_ > 0) {
            log_warn("an earlier reload still waits for files or the name service: this one goes ahead of it");
        }
        ++unread_;
        reload_calls_.run([this, read = options_.reload, number = ++begun_]() -> BlockingCalls::Then {
            // May hang, and then end when this object is gone: nothing here uses it.
            const auto config = read();
            if (!config) return [this, number, error = config.error()] { finish(number, std::unexpected(error), {}); };
            const auto renewed = AllocatorService::read_renewed(*config);
            return [this, number, renewed, config = *config] { finish(number, renewed, config); };
        });
    }

    void finish(std::uint64_t number, const Result<std::shared_ptr<const AllocatorService::Renewed>>& renewed,
                const AllocatorConfig& config) {
        --unread_;
        if (number != begun_) return;  // a later one has begun
        const Result<void> taken = renewed ? take(**renewed, config) : std::unexpected(renewed.error());
        if (!taken) {
            return log_error("the config was not reloaded; nothing changes", {{"error", taken.error().message}});
        }
        if (const auto level = parse_log_level(config.log_level)) set_log_level(*level);
        log_info("reloaded log level, roles, tokens and certificates from the config");
    }

    // The next term begins with the reloaded roles, tokens and certificates, too.
    Result<void> take(const AllocatorService::Renewed& renewed, const AllocatorConfig& config) {
        if (auto taken = AllocatorService::check_renewed(renewed, config_); !taken) return taken;
        if (service_ != nullptr) service_->take(renewed);
        if (standby_http_ != nullptr) AllocatorService::renew_tls(renewed, *standby_http_);
        config_.certificates = config.certificates;
        config_.local_role = config.local_role;
        config_.anyone_reads = config.anyone_reads;
        config_.users = config.users;
        config_.token_file = config.token_file;
        config_.tls = config.tls;
        return {};
    }

    const ServeOptions& options_;
    AllocatorConfig config_;  // as far as it can be reloaded, the last one
    boost::asio::io_context context_{1};
    const SteadyClock clock_;
    // SIGTERM and SIGINT are caught before any client can know that the service runs. Signals that come between two
    // phases are kept for the next one.
    boost::asio::signal_set end_signals_;
    boost::asio::signal_set reload_signals_;
    bool is_asked_to_end_ = false;
    std::function<bool()> is_over_;
    std::function<void()> stop_phase_;     // empty: the phase has ended
    AllocatorService* service_ = nullptr;  // null unless it serves
    HttpServer* standby_http_ = nullptr;   // null unless it stands by
    std::uint64_t begun_ = 0;
    std::uint64_t unread_ = 0;  // their files are being read
    BlockingCalls reload_calls_;
    std::optional<Leadership> leadership_;  // ends first: its thread posts to the context
};

}  // namespace

Result<void> serve(const ServeOptions& options) {
    return Program(options).run();
}

}  // namespace larder::allocator
