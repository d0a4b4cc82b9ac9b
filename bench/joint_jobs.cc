#include "bench/joint_jobs.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "bench/larder_feeder.h"
#include "bench/pace.h"

namespace larder::bench {
namespace {

constexpr std::int64_t kPoll_ms = 50;

Result<std::unique_ptr<Feeder>> open_feeder(const LoaderOptions& options) {
    auto feeder = LarderFeeder::open(options);
    if (!feeder) return std::unexpected(feeder.error());
    return std::make_unique<LarderFeeder>(std::move(*feeder));
}

}  // namespace

JointJobRun::JointJobRun(std::string name, Open open, double ideal_bytes_per_second, std::uint32_t epochs)
    : name_(std::move(name)), thread_([this, open = std::move(open), ideal_bytes_per_second, epochs] {
          run(open, ideal_bytes_per_second, epochs);
      }) {}

JointJobRun::~JointJobRun() {
    stop();
}

void JointJobRun::stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
}

Result<void> JointJobRun::state() const {
    const std::lock_guard lock(mutex_);
    return state_;
}

void JointJobRun::run(const Open& open, double ideal_bytes_per_second, std::uint32_t epochs) {
    const auto fail_with = [this](const Error& error) {
        const std::lock_guard lock(mutex_);
        state_ = std::unexpected(error);
    };
    auto feeder = open();
    if (!feeder) return fail_with(feeder.error());
    PacedConsumer consumer(ideal_bytes_per_second);
    while (!stopping_) {
        const auto batch = (*feeder)->next();
        if (!batch) return fail_with(batch.error());
        if (!*batch) {
            seconds_ = seconds_since(clock_, constructed_ns_);
            if (epochs_.fetch_add(1, std::memory_order_relaxed) + 1 == epochs) return;
            continue;
        }
        consumer.consume((*batch)->bytes, (*batch)->reading_ns);
        bytes_.fetch_add((*batch)->bytes, std::memory_order_relaxed);
    }
}

std::uint64_t seed_of(const JointJob& job) {
    std::uint64_t seed = 0;
    for (const char letter : job.name) seed = mix64(seed ^ static_cast<unsigned char>(letter));
    return seed;
}

LruOptions lru_options(const JointScenario& scenario, const JointJob& job, const FileSet& files,
                       std::shared_ptr<LruStore> store) {
    return {.files = files,
            .store = std::move(store),
            .dataset = job.dataset,
            .batch_size = scenario.batch_size,
            .seed = seed_of(job),
            .prefetch_blocks = kJointPrefetchBlocks};
}

std::unique_ptr<JointJobRun> run_on_larder(const JointScenario& scenario, const JointJob& job,
                                           const std::string& socket, std::uint32_t epochs) {
    const LoaderOptions options{{.dataset = scenario.datasets[job.dataset].name,
                                 .job = job.name,
                                 .socket = socket,
                                 .memory_budget_bytes = kJointPrefetchBlocks * scenario.block_bytes},
                                seed_of(job),
                                true,
                                16,
                                scenario.batch_size};
    return std::make_unique<JointJobRun>(
        job.name, [options] { return open_feeder(options); }, job.ideal_bytes_per_second, epochs);
}

Result<void> pause_between_polls(const JointRuns& runs, const cli::InterruptWatch& interrupt) {
    for (const auto& run : runs) {
        if (auto state = run->state(); !state) return state;
    }
    if (interrupt.pressed_within(kPoll_ms)) return fail(ErrorCode::cancelled, "was interrupted");
    return {};
}

Result<void> wait_for_epochs(const JointRuns& runs, std::uint32_t epochs, const cli::InterruptWatch& interrupt,
                             const std::function<void()>& on_poll) {
    const auto is_behind = [epochs](const auto& run) { return run->epochs() < epochs; };
    while (std::ranges::any_of(runs, is_behind)) {
        if (auto paused = pause_between_polls(runs, interrupt); !paused) return paused;
        on_poll();
    }
    return {};
}

}  // namespace larder::bench
