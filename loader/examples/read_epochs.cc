// read-epochs DATASET [EPOCHS [BATCH_SIZE]]: reads a dataset through this node's daemon as a training job does. Prints
// for each epoch the samples and bytes read, the rate, and the share of time that the loop waited.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "loader/larder.h"

namespace {

int report_error(const larder::Error& error) {
    std::fprintf(stderr, "read-epochs: %s\n", error.message.c_str());
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 4) {
        std::fprintf(stderr, "usage: read-epochs DATASET [EPOCHS [BATCH_SIZE]]\n");
        return 2;
    }
    larder::LoaderOptions options;
    options.dataset = argv[1];
    options.batch_size = argc > 3 ? static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 64;
    options.daemon_away = [](const std::string& why) {
        std::fprintf(stderr, "read-epochs: waiting: %s\n", why.c_str());
    };
    // The kernel drops signals for which process 1 of a container has no handler. Nothing needs to be saved: the daemon
    // frees what a reader held when its connection ends.
    if (::getpid() == 1) std::signal(SIGTERM, [](int number) { std::_Exit(128 + number); });
    const unsigned long epochs = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1;

    auto loader = larder::Loader::open(options);
    if (!loader) return report_error(loader.error());
    for (unsigned long epoch = 0; epoch < epochs; ++epoch) {
        const auto began = std::chrono::steady_clock::now();
        const larder::LoaderStatistics before = loader->statistics();
        std::uint64_t samples = 0;
        std::uint64_t bytes = 0;
        while (true) {
            const auto batch = loader->next();
            if (!batch) return report_error(batch.error());
            if (!*batch) break;
            for (const larder::Sample& sample : (*batch)->samples()) {
                ++samples;
                for (const larder::Field& field : sample.fields) bytes += field.bytes.size();
            }
        }
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began;
        const double stall_s = static_cast<double>(loader->statistics().stall_ns - before.stall_ns) * 1e-9;
        std::printf("epoch %lu: %llu samples, %llu bytes, %.0f samples/s, stall %.0f %%\n", epoch,
                    static_cast<unsigned long long>(samples), static_cast<unsigned long long>(bytes),
                    static_cast<double>(samples) / elapsed.count(), 100 * stall_s / elapsed.count());
        std::fflush(stdout);  // a container's log is a pipe
    }
    return 0;
}
