#pragma once

// A DatasetStore on a FakeDevice, with helpers that admit blocks whose bytes follow from their id and read them back.

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "cache/protocol/record.h"
#include "cache/store/store.h"
#include "tests/support/fake_device.h"
#include "tests/support/test_units.h"

namespace larder::test {

inline constexpr std::uint64_t kDatasetId = 0x1122334455667788;

inline void fill_payload(std::span<std::byte> payload, std::uint32_t block_id) {
    std::uint64_t word = mix64(block_id);
    for (std::size_t at = 0; at < payload.size(); at += sizeof word) {
        std::memcpy(payload.data() + at, &word, std::min(sizeof word, payload.size() - at));
        word = word * 6364136223846793005u + 1;
    }
}

inline std::vector<std::byte> payload_of(std::uint32_t block_id, std::uint32_t bytes) {
    std::vector<std::byte> payload(bytes);
    fill_payload(payload, block_id);
    return payload;
}

struct FreeDeleter {
    void operator()(std::byte* memory) const { std::free(memory); }
};

// A write of one record from page-aligned memory to disk.
struct TestWrite : cache::StoreWrite {
    TestWrite(const cache::Reservation& room, std::uint32_t crc_flip = 0) {
        const std::uint64_t bytes = protocol::record_bytes(room.payload_bytes, 4096);
        memory.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
        record = {memory.get(), bytes};
        std::memset(memory.get(), 0xee, bytes);
        const auto payload = record.subspan(protocol::kRecordHeaderBytes, room.payload_bytes);
        fill_payload(payload, room.block_id);
        payload_crc = crc32c(payload) ^ crc_flip;
        reservation = room;
        finished = [](cache::StoreWrite& write, std::int32_t ended) noexcept {
            static_cast<TestWrite&>(write).result = ended;
        };
    }
    std::unique_ptr<std::byte, FreeDeleter> memory;
    std::optional<std::int32_t> result;
};

// Reads a block's stored payload with plain reads.
inline std::vector<std::byte> stored_payload(const cache::BlockLocation& location) {
    std::vector<std::byte> payload(location.payload_bytes);
    if (payload.empty()) return payload;
    const std::uint64_t at = location.offset + protocol::kRecordHeaderBytes;
    if (location.segment->tier() == cache::Tier::memory) {
        std::memcpy(payload.data(), location.segment->memory() + at, payload.size());
        return payload;
    }
    // The fd may use direct I/O, so read the whole aligned record.
    const std::uint64_t bytes = protocol::record_bytes(location.payload_bytes, location.segment->alignment());
    std::unique_ptr<std::byte, FreeDeleter> record(
        static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
    if (::pread(location.segment->fd(), record.get(), bytes, static_cast<off_t>(location.offset)) !=
        static_cast<ssize_t>(bytes)) {
        return {};
    }
    std::memcpy(payload.data(), record.get() + protocol::kRecordHeaderBytes, payload.size());
    return payload;
}

struct StoreFixture {
    explicit StoreFixture(std::uint32_t blocks = 1000, std::uint32_t block_bytes_max = kMiB, bool on_disk = true,
                          std::uint64_t disk_bytes_max = ~std::uint64_t{0})
        : disk(disk_bytes_max) {
        cache::StoreOptions options;
        options.dataset_id = kDatasetId;
        options.block_id_end = blocks;
        options.block_bytes_max = block_bytes_max;
        options.segment_directory = on_disk ? "/segments" : "";
        options.disk_alignment = 512;
        store = std::make_unique<cache::DatasetStore>(options, device, clock, nullptr);
    }
    ~StoreFixture() { device.stop(); }

    void run() {
        while (store->operations_in_flight() > 0) device.wait(clock.now_ns() + 1'000'000'000);
    }
    bool admit_to_memory(std::uint32_t block_id, std::uint32_t bytes) {
        const auto room = store->reserve(cache::Tier::memory, block_id, bytes);
        if (!room) return false;
        fill_payload(store->payload(*room), block_id);
        return store->commit(*room, crc32c(store->payload(*room)));
    }
    // Returns 0, -errno, or refused(...).
    std::int32_t admit_to_disk(std::uint32_t block_id, std::uint32_t bytes) {
        const auto room = store->reserve(cache::Tier::disk, block_id, bytes);
        if (!room) return refused(room.error());
        TestWrite write(*room);
        if (!store->write(write)) return -ECANCELED;
        run();
        return write.result.value();
    }
    // Returns the result of admit_to_disk() if the store refuses the block for this reason.
    static std::int32_t refused(cache::Refusal reason) { return 1 + static_cast<std::int32_t>(reason); }
    bool holds(std::uint32_t block_id, std::uint32_t bytes) const {
        const auto location = store->find(block_id);
        return location && location->payload_bytes == bytes &&
               stored_payload(*location) == payload_of(block_id, bytes) &&
               location->payload_crc == crc32c(payload_of(block_id, bytes));
    }

    FakeDisk disk;
    ManualClock clock{1'000'000'000};
    FakeDevice device{disk, clock};
    std::unique_ptr<cache::DatasetStore> store;
};

}  // namespace larder::test
