// Measures the slot memory that a session takes from the kernel, in the real daemon with the real loader.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "loader/larder.h"
#include "tests/support/sample_data.h"
#include "tests/support/test_daemon.h"
#include "tests/support/test_units.h"

namespace larder::test {
namespace {

// The memory behind all slots of the daemon in this process.
std::uint64_t slot_memory_bytes() {
    std::uint64_t bytes = 0;
    for (const auto& descriptor : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        const std::string target = std::filesystem::read_symlink(descriptor, gone).string();
        struct stat status{};
        if (gone || target.find("larder-slots") == std::string::npos) continue;
        if (::stat(descriptor.path().c_str(), &status) == 0)
            bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    return bytes;
}

class SlotMemory : public testing::Test {
protected:
    SlotMemory() {
        for (const NamedBytes& file : make_tree(root, {.class_count = 3, .files_per_class = 30, .bytes_max = 40'000})) {
            total_bytes += file.content.size();
        }
    }
    Loader open() const {
        LoaderOptions options;
        options.dataset = "d";
        options.job = "job";
        options.socket = daemon.socket();
        options.memory_budget_bytes = 256 * kMiB;
        options.batch_size = 7;
        auto loader = Loader::open(options);
        if (!loader) throw std::runtime_error(loader.error().message);
        return std::move(*loader);
    }
    static std::uint64_t read_epoch(Loader& loader) {
        std::uint64_t bytes = 0;
        for (;;) {
            const auto batch = loader.next();
            if (!batch) throw std::runtime_error(batch.error().message);
            if (!*batch) return bytes;
            for (const Sample& sample : (*batch)->samples()) bytes += sample.bytes().size();
        }
    }

    TestDaemon daemon;
    const std::string root = daemon.state / "tree";
    std::uint64_t total_bytes = 0;
};

TEST_F(SlotMemory, SessionThatReadsNothingUsesNone) {
    daemon.add("d", root, 0, 32 * kMiB);
    const Loader loader = open();
    EXPECT_EQ(slot_memory_bytes(), 0u);
}

TEST_F(SlotMemory, SessionThatReadsLittleUsesLittle) {
    daemon.add("d", root, 0, 32 * kMiB);
    Loader loader = open();
    EXPECT_EQ(read_epoch(loader), total_bytes);
    EXPECT_GT(slot_memory_bytes(), 0u);
    EXPECT_LE(slot_memory_bytes(), 16 * kMiB) << "of a budget of 256 MiB";
}

TEST_F(SlotMemory, SessionWithOnlyMemoryHitsUsesNone) {
    daemon.add("d", root, 32 * kMiB, 0);
    {
        Loader warming = open();
        read_epoch(warming);
    }
    TestDaemon::wait_until([] { return slot_memory_bytes() == 0; });
    Loader loader = open();
    EXPECT_EQ(read_epoch(loader), total_bytes);
    EXPECT_EQ(loader.statistics().memory_blocks, loader.sample_count());
    EXPECT_EQ(slot_memory_bytes(), 0u);
}

}  // namespace
}  // namespace larder::test
