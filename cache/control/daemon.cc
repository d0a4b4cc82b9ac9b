#include "cache/control/daemon.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "base/file.h"
#include "base/machine_memory.h"
#include "base/server/blocking_calls.h"
#include "base/server/http.h"
#include "base/server/logging.h"
#include "base/server/private_file.h"
#include "base/units.h"
#include "cache/control/agent.h"
#include "cache/control/daemon_api.h"
#include "cache/control/dataset_request.h"
#include "cache/control/handshake.h"
#include "cache/control/node.h"
#include "cache/control/promised_floor.h"
#include "cache/control/state_lock.h"

namespace larder::cache {
namespace asio = boost::asio;
namespace {

// So that one user, or one host that reads metrics, cannot take all connections of a listener.
constexpr std::size_t kApiConnectionsPerPeerMax = 64;

constexpr std::chrono::seconds kHousekeepingPeriod{1};
constexpr std::chrono::seconds kAnswerGracePeriod{1};
// A loader's default slot memory. A lower limit on locked memory means unregistered buffers.
constexpr std::uint64_t kLockedMemoryWanted = std::uint64_t{256} << 20;

Result<void> make_directories(const std::string& state) {
    std::error_code error;
    std::filesystem::create_directories(state, error);
    if (error) return fail_errno(error.value(), "make state directory " + state);
    // Mode 0700: cached bytes and manifests are read only through sessions, which check access.
    for (const char* name : {"/datasets", "/segments", "/index"}) {
        const std::string path = state + name;
        if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) continue;
        // Some file systems that are read-only report that first.
        const int failed = errno;
        if (failed != EROFS || !std::filesystem::is_directory(path, error))
            return fail_errno(failed, "make directory " + path);
    }
    return {};
}

// A session takes three descriptors, and a segment one.
void raise_file_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

void log_slow_io(const ShardThreads& shards) {
    if (!shards.why_not_ring().empty()) {
        log_info("io_uring is not used: disk and remote reads go through threads, which costs speed",
                 {{"reason", shards.why_not_ring()}});
        return;
    }
    rlimit limit{};
    const bool known = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0;
    if (shards.device_kind() != "io_uring" || ::geteuid() == 0 || !known || limit.rlim_cur >= kLockedMemoryWanted)
        return;
    log_info(
        "sessions' buffers are not registered with the kernel, which costs some speed: raise RLIMIT_MEMLOCK "
        "(LimitMEMLOCK=infinity in a systemd unit)",
        {{"limit_bytes", std::uint64_t{limit.rlim_cur}}});
}

// Limits slot memory to half the machine's: the memory tier and the training jobs need the rest.
std::uint64_t slot_bytes_max() {
    return machine_memory().bytes / 2;
}

// A file system may grow while the daemon runs, so this is no error.
void warn_of_small_disk(const DaemonConfig& config) {
    std::error_code error;
    const auto space = std::filesystem::space(config.state_directory, error);
    if (error || config.disk_bytes <= space.capacity) return;
    log_warn("the disk for datasets is larger than its file system",
             {{"disk_bytes", config.disk_bytes}, {"file_system_bytes", std::uint64_t{space.capacity}}});
}

// Names are looked up here, because the control thread must not wait for the name service.
Result<void> look_up_users(DaemonConfig& config) {
    for (auto& [name, dataset] : config.datasets) {
        if (auto found = look_up_users(dataset); !found)
            return std::unexpected(found.error().within("dataset \"" + name + "\" of the config"));
    }
    return {};
}

}  // namespace

struct Daemon::State {
    explicit State(const DaemonConfig& with_config) : config(with_config) {}

    Result<void> start();
    void run_periodic_work();
    void stop();

    const DaemonConfig config;
    bool takes_signals = false;
    asio::io_context context{1};
    asio::executor_work_guard<asio::io_context::executor_type> work_guard{context.get_executor()};
    asio::steady_timer housekeeping{context};
    FileDescriptor lock;
    std::unique_ptr<Node> node;
    std::unique_ptr<HandshakeServer> handshakes;
    std::unique_ptr<AllocatorAgent> agent;
    std::unique_ptr<DaemonApi> api;
    std::unique_ptr<HttpServer> http;
    std::uint16_t metrics_port = 0;
    std::thread control;
    std::promise<void> control_ended;

    std::mutex stop_mutex;  // guards `stopped`
    bool stopped = false;
    asio::io_context waiting{1};  // `run` runs it until a signal arrives or `stop` is called
    std::optional<asio::signal_set> signals;
    // Both count reloads by SIGHUP. Only `run` uses them.
    std::uint64_t reloads = 0;
    std::uint64_t reloads_unread = 0;  // their config is being read
};

Result<void> Daemon::State::start() {
    if (auto fits = check_memory(config, machine_memory()); !fits) return fits;
    if (auto made = make_directories(config.state_directory); !made) return made;
    warn_of_small_disk(config);
    auto locked = lock_state_directory(config.state_directory);
    if (!locked) return std::unexpected(locked.error());
    lock = std::move(*locked);
    raise_file_limit();

    auto started = Node::start(config, context);
    if (!started) return std::unexpected(started.error());
    node = std::move(*started);
    log_slow_io(node->shards());

    handshakes =
        std::make_unique<HandshakeServer>(context, node->sessions(),
                                          HandshakeLimits{.session_slot_bytes_max = config.session_slot_bytes_max,
                                                          .slot_bytes_max = slot_bytes_max(),
                                                          .sessions_max = config.sessions_max,
                                                          .user_part = config.session_user_part});
    if (auto listening = handshakes->listen(config.socket_path, config.socket_mode); !listening) return listening;

    if (!config.allocator.endpoint.empty()) {
        const auto number = load_or_create_directory_number(config.state_directory);
        if (!number) return std::unexpected(number.error());
        auto promised = load_promised_floor(config.state_directory);
        if (!promised) {
            log_error("what the allocator promised is unknown: jobs take nothing before the first lease",
                      {{"error", promised.error().message}});
        }
        agent = std::make_unique<AllocatorAgent>(
            context, *node, *number,
            PromisedFloor(config.allocator.floor_bytes_per_second, promised ? *promised : std::optional(0.0)));
    }
    PageAccess access{.anyone_reads = config.page_anyone_reads, .token = {}};
    if (!config.page_token_file.empty()) {
        const auto token = read_private_line(config.page_token_file, "token file");
        if (!token) return std::unexpected(token.error());
        if (!is_good_token(*token)) {
            return fail(ErrorCode::invalid_argument,
                        "page.token_file: the token in " + config.page_token_file + " " + good_token_text());
        }
        access.token = token_digest(*token);
    }
    api = std::make_unique<DaemonApi>(*node, *handshakes, agent.get(), access);
    http = std::make_unique<HttpServer>(
        context, [this](const HttpRequest& request, const HttpRespond& respond) { api->handle(request, respond); },
        HttpServerOptions{.connections_per_peer_max = kApiConnectionsPerPeerMax});
    if (auto listening = http->listen_unix(config.admin_socket_path, config.admin_socket_mode); !listening) {
        return listening;
    }
    if (!config.metrics_listen.empty()) {
        const auto port = http->listen_tcp(config.metrics_listen);
        if (!port) return std::unexpected(port.error());
        metrics_port = *port;
    }
    run_periodic_work();
    if (agent != nullptr) agent->start();
    // Whoever has had an answer may send a signal. One that arrives before `run` waits for it.
    if (takes_signals) signals.emplace(waiting, SIGTERM, SIGINT, SIGHUP);
    control = std::thread([this] {
        context.run();
        control_ended.set_value();
    });
    log_info("serving", {{"socket", config.socket_path},
                         {"admin_socket", config.admin_socket_path},
                         {"io", node->shards().device_kind()},
                         {"data_plane_threads", node->shards().all().size()},
                         {"memory", format_bytes(config.memory_bytes)},
                         {"disk", format_bytes(config.disk_bytes)}});
    return {};
}

void Daemon::State::run_periodic_work() {
    housekeeping.expires_after(kHousekeepingPeriod);
    housekeeping.async_wait([this](const boost::system::error_code& error) {
        if (error) return;
        node->run_periodic_work();
        run_periodic_work();
    });
}

void Daemon::State::stop() {
    const std::lock_guard one_at_a_time(stop_mutex);
    if (std::exchange(stopped, true)) return;
    if (control.joinable()) {
        log_info("stopping");
        asio::post(context, [this] {
            housekeeping.cancel();
            if (agent != nullptr) agent->stop();
            http->stop();
            handshakes->stop();
            work_guard.reset();
        });
        // Lets answers in flight finish, within a time limit.
        control_ended.get_future().wait_for(kAnswerGracePeriod);
        context.stop();
        control.join();
    }
    http.reset();
    agent.reset();
    if (node != nullptr) node->stop();
    handshakes.reset();
    api.reset();
    node.reset();
    lock.reset();
    waiting.stop();
}

Daemon::Daemon(std::unique_ptr<State> state) : state_(std::move(state)) {}

Daemon::~Daemon() {
    stop();
}

Result<std::unique_ptr<Daemon>> Daemon::start(const DaemonConfig& config, Signals signals) {
    std::unique_ptr<Daemon> daemon(new Daemon(std::make_unique<State>(config)));
    daemon->state_->takes_signals = signals == Signals::taken;
    if (auto started = daemon->state_->start(); !started) return std::unexpected(started.error());
    return daemon;
}

void Daemon::stop() noexcept {
    state_->stop();
}

void Daemon::run(RunOptions options) {
    if (!state_->signals) state_->signals.emplace(state_->waiting, SIGTERM, SIGINT, SIGHUP);
    BlockingCalls reads(state_->waiting, "larder-reload");
    std::function<void()> wait = [&] {
        state_->signals->async_wait([&](const boost::system::error_code& error, int signal) {
            if (error) return;
            if (signal != SIGHUP) {
                log_info("asked to end", {{"signal", signal == SIGTERM ? "SIGTERM" : "SIGINT"}});
                return state_->waiting.stop();
            }
            if (options.reload) start_reload(options.reload, reads);
            wait();
        });
    };
    wait();
    if (options.ready) options.ready();
    state_->waiting.run();  // returns at once after `stop`
    state_->signals.reset();
    stop();
}

void Daemon::start_reload(const std::function<Result<DaemonConfig>()>& read, BlockingCalls& reads) {
    if (state_->reloads_unread > 0) {
        log_warn("an earlier reload still waits for the config or the name service: this one goes ahead of it");
    }
    ++state_->reloads_unread;
    reads.run([this, read, number = ++state_->reloads]() -> BlockingCalls::Then {
        // May hang, and then end when this Daemon is gone: nothing here uses it.
        auto config = read();
        if (config) {
            if (auto found = look_up_users(*config); !found) config = std::unexpected(found.error());
        }
        return [this, config = std::move(config), number] {
            --state_->reloads_unread;
            if (number != state_->reloads) return;  // a later one has begun
            const Result<void> reloaded = config ? apply(*config) : std::unexpected(config.error());
            if (reloaded) {
                log_info("reloaded quotas, job limits and log level from the config");
            } else {
                log_error("the config was not reloaded; nothing changes", {{"error", reloaded.error().message}});
            }
        };
    });
}

Result<void> Daemon::reload(const DaemonConfig& config) {
    DaemonConfig with_numbers = config;
    if (auto found = look_up_users(with_numbers); !found) return found;
    return apply(with_numbers);
}

Result<void> Daemon::apply(const DaemonConfig& with_numbers) {
    const std::lock_guard lock(state_->stop_mutex);
    if (state_->stopped) return fail(ErrorCode::unavailable, "the daemon has stopped");
    const auto level = parse_log_level(with_numbers.log_level);
    if (!level) return std::unexpected(level.error());
    std::promise<Result<void>> applied;
    asio::post(state_->context, [&] { applied.set_value(state_->node->apply(with_numbers)); });
    auto result = applied.get_future().get();
    if (result) set_log_level(*level);
    return result;
}

const std::string& Daemon::socket_path() const {
    return state_->config.socket_path;
}
const std::string& Daemon::admin_socket_path() const {
    return state_->config.admin_socket_path;
}
std::uint16_t Daemon::metrics_port() const {
    return state_->metrics_port;
}

}  // namespace larder::cache
