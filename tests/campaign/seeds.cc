// larder-campaign-seeds: simulates whole clusters, one for each seed, and checks that nothing is lost, doubled, wrong
// or exceeded. See tests/campaign/seeds/world.h.
//
// With --state, a later call goes on with the next seed, and standard output has the JSON lines that tests/campaign/run
// reads; people read standard error. Seeds run in child processes, so that a seed that aborts or hangs ends only its
// own run.

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "base/file.h"
#include "base/server/json_text.h"
#include "base/server/logging.h"
#include "scheduler/policy.h"
#include "tests/campaign/seeds/world.h"

namespace {

namespace fs = std::filesystem;
using larder::campaign::SimulatedWorld;
using larder::campaign::WorldOptions;
using larder::campaign::WorldResult;

struct Options {
    double seconds = 60;
    std::optional<std::uint64_t> seed;
    std::uint64_t count = 0;  // 0: as many as the time allows
    std::string state;
    std::string policy;
    bool trace = false;
    bool twice = false;
    bool no_faults = false;
    unsigned seconds_per_seed = 120;
};

struct Totals {
    std::uint64_t next_seed = 1;
    std::uint64_t seeds = 0;
    double simulated_s = 0;
    double cpu_s = 0;
    std::uint64_t steps = 0;
    std::uint64_t faults = 0;
    std::uint64_t jobs_ended = 0;
    std::uint64_t failures = 0;
    std::uint64_t blocks_recovered = 0;
    std::uint64_t reads[larder::protocol::kBlockSources] = {};
};

// A child's report on one seed.
struct Report {
    double simulated_s;
    double cpu_s;
    std::uint64_t steps;
    std::uint64_t faults;
    std::uint64_t jobs_ended;
    std::uint64_t trace_hash;
    std::uint64_t events;
    std::uint64_t blocks_recovered;
    std::uint64_t reads[larder::protocol::kBlockSources];
    char failure[512];
};

std::string g_program;

double cpu_s() {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// The files of simulated disks are best kept in memory.
std::string make_directory() {
    std::string path = fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string();
    path += "/larder-campaign-seeds.XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) {
        std::perror(path.c_str());
        std::exit(2);
    }
    return path;
}

Report run_seed(const Options& options, std::uint64_t seed, const std::string& directory) {
    const double before_s = cpu_s();
    const auto run = [&](bool prints) {
        fs::create_directories(directory);
        WorldResult result;
        {
            SimulatedWorld world({.seed = seed,
                                  .directory = directory,
                                  .prints = prints,
                                  .faults = !options.no_faults,
                                  .policy = options.policy});
            result = world.run();
        }
        fs::remove_all(directory);
        return result;
    };
    WorldResult result = run(options.trace);
    if (options.twice && result.failure.empty()) {
        const WorldResult again = run(false);
        result.simulated_s += again.simulated_s;
        if (again.trace_hash != result.trace_hash) result.failure = "the same seed gave two traces";
    }
    Report report{.simulated_s = result.simulated_s,
                  .cpu_s = cpu_s() - before_s,
                  .steps = result.steps,
                  .faults = result.faults,
                  .jobs_ended = result.jobs_ended,
                  .trace_hash = result.trace_hash,
                  .events = result.events,
                  .blocks_recovered = result.blocks_recovered,
                  .reads = {},
                  .failure = {}};
    std::ranges::copy(result.reads, report.reads);
    std::snprintf(report.failure, sizeof report.failure, "%s", result.failure.c_str());
    return report;
}

// Ends this process after so many seconds of CPU time, or ten times as long by the clock: a busy machine is slow, but
// hardly that slow.
void limit_time(unsigned seconds) {
    const itimerval cpu_time{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
    ::setitimer(ITIMER_PROF, &cpu_time, nullptr);
    ::alarm(10 * seconds);
}

// Runs seeds in this process, and writes a Report of each.
[[noreturn]] void run_child(const Options& options, std::uint64_t first, std::uint64_t count,
                            const std::string& directory, int reports) {
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        limit_time(options.seconds_per_seed);
        const Report report = run_seed(options, seed, directory + "/seed");
        if (::write(reports, &report, sizeof report) != ssize_t{sizeof report}) break;
    }
    std::fflush(stdout);
    ::_exit(0);
}

class Campaign {
public:
    explicit Campaign(const Options& options) : options_(options) {
        load();
        if (options.seed && (options.state.empty() || totals_.seeds == 0)) totals_.next_seed = *options.seed;
    }

    int run() {
        const auto begun = std::chrono::steady_clock::now();
        const std::uint64_t failures_before = totals_.failures;
        const auto is_over = [&] {
            const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begun;
            return options_.count > 0 ? run_now_ >= options_.count : passed.count() >= options_.seconds;
        };
        while (!is_over()) {
            constexpr std::uint64_t kBatch = 20;
            const std::uint64_t left = options_.count > 0 ? options_.count - run_now_ : kBatch;
            const Totals before = totals_;
            run_batch(std::min(left, kBatch), is_over);
            save();
            print_line(before);
        }
        print();
        return totals_.failures == failures_before ? 0 : 1;
    }

private:
    template <typename IsOver>
    void run_batch(std::uint64_t count, const IsOver& is_over) {
        int ends[2];
        if (::pipe(ends) != 0) std::exit(2);
        std::fflush(stdout);
        const std::string directory = make_directory();
        const pid_t child = ::fork();
        if (child == 0) {
            ::close(ends[0]);
            run_child(options_, totals_.next_seed, count, directory, ends[1]);
        }
        ::close(ends[1]);
        const larder::FileDescriptor reports(ends[0]);
        const std::uint64_t last = totals_.next_seed + count;
        Report report;
        while (totals_.next_seed < last && read_report(reports.get(), report)) {
            take(report);
            if (is_over()) break;
        }
        const bool enough = is_over() && totals_.next_seed < last;
        if (enough) ::kill(child, SIGKILL);
        int status = 0;
        ::waitpid(child, &status, 0);
        // A child that was killed leaves its files.
        fs::remove_all(directory);
        if (enough || totals_.next_seed == last) return;
        Report died{};
        if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGPROF || WTERMSIG(status) == SIGALRM)) {
            std::snprintf(died.failure, sizeof died.failure,
                          "it takes more than %u s of CPU time, or ten times as long", options_.seconds_per_seed);
        } else {
            std::snprintf(died.failure, sizeof died.failure, "it ended with %s %d",
                          WIFSIGNALED(status) ? "signal" : "code",
                          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        }
        take(died);
    }

    static bool read_report(int fd, Report& report) {
        return ::read(fd, &report, sizeof report) == ssize_t{sizeof report};
    }

    void take(const Report& report) {
        const std::uint64_t seed = totals_.next_seed++;
        ++run_now_;
        ++totals_.seeds;
        totals_.simulated_s += report.simulated_s;
        totals_.cpu_s += report.cpu_s;
        totals_.steps += report.steps;
        totals_.faults += report.faults;
        totals_.jobs_ended += report.jobs_ended;
        totals_.blocks_recovered += report.blocks_recovered;
        for (std::size_t i = 0; i < std::size(report.reads); ++i) totals_.reads[i] += report.reads[i];
        if (options_.trace || options_.count == 1) {
            std::printf("seed %llu: trace %016llx, %llu events, %.2f s of CPU\n", static_cast<unsigned long long>(seed),
                        static_cast<unsigned long long>(report.trace_hash),
                        static_cast<unsigned long long>(report.events), report.cpu_s);
        }
        if (report.failure[0] == '\0') return;
        ++totals_.failures;
        const std::string repeat = g_program + " --seed " + std::to_string(seed) + " --count 1 --trace" +
                                   (options_.twice ? " --twice" : "") + (options_.no_faults ? " --no-faults" : "") +
                                   (options_.policy.empty() ? "" : " --policy " + options_.policy);
        const std::string line =
            "FAILED seed " + std::to_string(seed) + ": " + report.failure + "\n    repeat: " + repeat + "\n";
        std::fputs(line.c_str(), people());
        std::fflush(people());
        if (options_.state.empty()) return;
        const std::string json = larder::json_text(boost::json::object{
            {"failure", std::string("seed ") + std::to_string(seed) + ": " + report.failure}, {"repeat", repeat}});
        std::printf("%s\n", json.c_str());
        std::fflush(stdout);
        std::ofstream(fs::path(options_.state) / "seeds-failures.txt", std::ios::app) << line;
    }

    std::string state_file() const { return (fs::path(options_.state) / "seeds.txt").string(); }

    void load() {
        if (options_.state.empty()) return;
        fs::create_directories(options_.state);
        const auto text = larder::read_file(state_file());
        if (!text) return;
        std::istringstream in(*text);
        in >> totals_.next_seed >> totals_.seeds >> totals_.simulated_s >> totals_.cpu_s >> totals_.steps >>
            totals_.faults >> totals_.jobs_ended >> totals_.failures >> totals_.blocks_recovered;
        for (std::uint64_t& reads : totals_.reads) in >> reads;
    }

    void save() const {
        if (options_.state.empty()) return;
        std::ostringstream out;
        out.precision(17);
        out << totals_.next_seed << ' ' << totals_.seeds << ' ' << totals_.simulated_s << ' ' << totals_.cpu_s << ' '
            << totals_.steps << ' ' << totals_.faults << ' ' << totals_.jobs_ended << ' ' << totals_.failures << ' '
            << totals_.blocks_recovered;
        for (const std::uint64_t reads : totals_.reads) out << ' ' << reads;
        out << '\n';
        if (auto saved = larder::replace_file(state_file(), out.str()); !saved)
            std::fprintf(stderr, "%s\n", saved.error().message.c_str());
    }

    std::FILE* people() const { return options_.state.empty() ? stdout : stderr; }

    // For tests/campaign/run: what the last batch added.
    void print_line(const Totals& before) const {
        if (options_.state.empty()) return;
        const auto whole = [](double now, double then) {
            return static_cast<std::int64_t>(now) - static_cast<std::int64_t>(then);
        };
        const std::string json =
            larder::json_text(boost::json::object{{"rounds", totals_.seeds - before.seeds},
                                                  {"simulated_s", whole(totals_.simulated_s, before.simulated_s)},
                                                  {"cpu_s", whole(totals_.cpu_s, before.cpu_s)},
                                                  {"faults", totals_.faults - before.faults},
                                                  {"steps", totals_.steps - before.steps}});
        std::printf("%s\n", json.c_str());
        std::fflush(stdout);
    }

    void print() const {
        std::fprintf(people(), "seeds %llu, simulated %.0f s, CPU %.1f s: %.0f simulated seconds a CPU second\n",
                     static_cast<unsigned long long>(totals_.seeds), totals_.simulated_s, totals_.cpu_s,
                     totals_.cpu_s > 0 ? totals_.simulated_s / totals_.cpu_s : 0.0);
        std::fprintf(people(), "faults %llu, steps of jobs %llu, submitted jobs that ended %llu, failures %llu\n",
                     static_cast<unsigned long long>(totals_.faults), static_cast<unsigned long long>(totals_.steps),
                     static_cast<unsigned long long>(totals_.jobs_ended),
                     static_cast<unsigned long long>(totals_.failures));
        const auto reads = [this](larder::protocol::BlockSource source) {
            return static_cast<unsigned long long>(totals_.reads[static_cast<std::size_t>(source)]);
        };
        std::fprintf(people(), "blocks read from memory %llu, disk %llu, peers %llu, remote %llu; recovered %llu\n",
                     reads(larder::protocol::BlockSource::memory), reads(larder::protocol::BlockSource::disk),
                     reads(larder::protocol::BlockSource::peer), reads(larder::protocol::BlockSource::remote),
                     static_cast<unsigned long long>(totals_.blocks_recovered));
    }

    Options options_;
    Totals totals_;
    std::uint64_t run_now_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    Options options;
    g_program = argv[0];
    CLI::App app("Simulates whole clusters, one for each seed, with faults, and checks invariants.");
    app.add_option("--seconds", options.seconds, "Run new seeds for this long");
    app.add_option("--seed", options.seed, "The first seed; with a --state that has run seeds, they go on from there");
    app.add_option("--count", options.count, "Run this many seeds, however long that takes");
    app.add_option("--state", options.state, "A directory that keeps the progress and the failures");
    app.add_option("--policy", options.policy, "The policy of all seeds; without it, each seed draws one")
        ->check([](const std::string& name) {
            const auto names = larder::scheduler::policy_names();
            return std::ranges::find(names, name) == names.end() ? "there is no policy " + name : std::string();
        });
    app.add_flag("--trace", options.trace, "Print what happens");
    app.add_flag("--twice", options.twice, "Run each seed twice, and compare the traces");
    app.add_flag("--no-faults", options.no_faults, "No faults and no changes");
    app.add_option("--seconds-per-seed", options.seconds_per_seed,
                   "A seed that takes more CPU time, or ten times as long, counts as hung");
    CLI11_PARSE(app, argc, argv);
    if (auto started = larder::start_logging({larder::LogLevel::error, "/dev/null"}); !started) return 2;
    return Campaign(options).run();
}
