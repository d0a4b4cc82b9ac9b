#include "tools/cli/embedded_allocator.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <pthread.h>

#include <csignal>
#include <thread>

#include "allocator/service/allocator_config.h"
#include "allocator/service/service.h"
#include "base/clock.h"

namespace larder::cli {
namespace {

// Exceeds any link, so that the remote limit binds no plan.
constexpr double kNoLimit_bytes_per_second = 1e15;

}  // namespace

struct EmbeddedAllocator::State {
    SteadyClock clock;
    boost::asio::io_context context{1};
    std::unique_ptr<allocator::AllocatorService> service;
    std::thread thread;
};

EmbeddedAllocator::EmbeddedAllocator(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<EmbeddedAllocator>> EmbeddedAllocator::start(const Options& options) {
    allocator::AllocatorConfig config;
    config.state_directory = options.state_directory + "/allocator";
    config.socket = options.socket;
    config.socket_mode = 0600;
    config.only_this_process = true;
    config.cluster.remote_bytes_per_second =
        options.remote_bytes_per_second > 0 ? options.remote_bytes_per_second : kNoLimit_bytes_per_second;
    auto state = std::make_unique<State>();
    auto service = allocator::AllocatorService::start(state->context, config, state->clock);
    if (!service) return std::unexpected(service.error().within("the allocator"));
    state->service = std::move(*service);
    // Signals are left to the daemon.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    state->thread = std::thread([&context = state->context] {
        pthread_setname_np(pthread_self(), "larder-alloc");
        context.run();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return std::unique_ptr<EmbeddedAllocator>(new EmbeddedAllocator(std::move(state)));
}

EmbeddedAllocator::~EmbeddedAllocator() {
    boost::asio::post(state_->context, [service = state_->service.get()] { service->stop(); });
    state_->thread.join();
}

}  // namespace larder::cli
