// larder-test-reader SOCKET DATASET FILES JOB EPOCHS PAUSE_US SEED [FORBIDDEN]: reads a dataset of plain files as a
// training job does, and compares every byte with the files below FILES. Prints one line an epoch. EPOCHS 0: until
// SIGTERM. Sleeps PAUSE_US microseconds after each batch. With FORBIDDEN, nothing is compared: no byte may belong to
// this text.
//
// Exit codes: 0: all was right; 1: the daemon gave an error; 2: wrong usage; 3: wrong bytes, or a sample that was
// missing or came twice.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "loader/larder.h"

namespace {

constexpr int kFailed = 1;
constexpr int kWrong = 3;

volatile std::sig_atomic_t stop = 0;

std::map<std::string, std::string> read_files(const std::filesystem::path& root) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
        if (!entry.is_regular_file()) continue;
        std::ifstream file(entry.path(), std::ios::binary);
        files[std::filesystem::relative(entry.path(), root).string()] =
            std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return files;
}

struct Reading {
    std::map<std::string, std::string> files;
    std::vector<int> seen;
    std::string_view forbidden{};
    std::uint64_t epochs = 0;
    std::uint64_t bytes = 0;

    // Returns an exit code.
    int take(const larder::Batch& batch) {
        for (const larder::Sample& sample : batch.samples()) {
            const std::string_view got(reinterpret_cast<const char*>(sample.bytes().data()), sample.bytes().size());
            bytes += got.size();
            if (!forbidden.empty()) {
                if (got.find(forbidden) == std::string_view::npos) continue;
                std::printf("wrong: forbidden bytes in %.*s\n", static_cast<int>(sample.key.size()), sample.key.data());
                return kWrong;
            }
            const auto file = files.find(std::string(sample.key));
            if (file == files.end() || file->second != got) {
                std::printf("wrong: the bytes of %.*s\n", static_cast<int>(sample.key.size()), sample.key.data());
                return kWrong;
            }
            if (sample.index < seen.size()) ++seen[sample.index];
        }
        return 0;
    }

    int end_epoch() {
        for (std::size_t i = 0; i < seen.size(); ++i) {
            if (seen[i] == 1) continue;
            std::printf("wrong: sample %zu came %d times in epoch %llu\n", i, seen[i],
                        static_cast<unsigned long long>(epochs));
            return kWrong;
        }
        std::ranges::fill(seen, 0);
        ++epochs;
        std::printf("epoch %llu bytes %llu\n", static_cast<unsigned long long>(epochs),
                    static_cast<unsigned long long>(bytes));
        std::fflush(stdout);
        return 0;
    }
};

int report_error(const larder::Error& error) {
    std::printf("error: %s\n", error.message.c_str());
    return kFailed;
}

int read_epochs(larder::Loader& loader, Reading& reading, std::uint64_t epochs, std::chrono::microseconds pause) {
    while (stop == 0 && (epochs == 0 || reading.epochs < epochs)) {
        auto batch = loader.next();
        if (!batch && stop != 0) break;
        if (!batch) return report_error(batch.error());
        const int code = *batch ? reading.take(**batch) : reading.end_epoch();
        if (code != 0) return code;
        if (pause.count() > 0) std::this_thread::sleep_for(pause);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 8 && argc != 9) {
        std::fputs("usage: larder-test-reader SOCKET DATASET FILES JOB EPOCHS PAUSE_US SEED [FORBIDDEN]\n", stderr);
        return 2;
    }
    std::puts("reading");
    std::fflush(stdout);
    std::signal(SIGTERM, [](int) { stop = 1; });
    Reading reading{.seen = {}, .forbidden = argc == 9 ? argv[8] : std::string_view()};
    if (reading.forbidden.empty()) reading.files = read_files(argv[3]);
    const std::uint64_t seed = std::strtoull(argv[7], nullptr, 10);
    larder::LoaderOptions options;
    options.dataset = argv[2];
    options.job = argv[4];
    options.socket = argv[1];
    options.memory_budget_bytes = std::uint64_t{16} << 20;
    options.reconnect_timeout_ms = 60'000;
    options.interrupted = [] { return stop != 0; };
    options.seed = seed;
    options.batch_size = static_cast<std::uint32_t>(1 + seed % 32);
    auto loader = larder::Loader::open(options);
    if (!loader) return stop != 0 ? 0 : report_error(loader.error());
    if (reading.forbidden.empty() && loader->sample_count() != reading.files.size()) {
        std::printf("wrong: the dataset has %llu samples, not %zu\n",
                    static_cast<unsigned long long>(loader->sample_count()), reading.files.size());
        return kWrong;
    }
    reading.seen.resize(reading.files.size());
    return read_epochs(*loader, reading, std::strtoull(argv[5], nullptr, 10),
                       std::chrono::microseconds(std::strtoull(argv[6], nullptr, 10)));
}
