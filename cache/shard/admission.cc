#include "cache/shard/admission.h"

#include <cstring>

#include "base/assert.h"
#include "cache/protocol/record.h"
#include "cache/protocol/wire.h"

namespace larder::cache {

using protocol::kRecordHeaderBytes;

// A block on its way from a slot to a disk segment.
struct Admission::Write : StoreWrite {
    Admission* admission = nullptr;
    Block block;
};

// A block being compressed, then on its way to a disk segment.
struct Admission::Compressing : CompressWork {
    Admission* admission = nullptr;
    Block block;
    struct Stored : StoreWrite {
        Compressing* work = nullptr;
    } write;
};

Admission::Admission(DatasetStore& store, Compressor& compressor, Tracer& tracer, Compression requested,
                     std::function<void(std::uint32_t block_id, std::uint64_t bytes)> admitted)
    : store_(store), compressor_(compressor), tracer_(tracer), choice_(requested), admitted_(std::move(admitted)) {}

Admission::~Admission() = default;

bool Admission::compresses(std::uint32_t payload_bytes, std::uint64_t dataset_bytes) const {
    const Quota quota = store_.quota();
    if (!choice_.wants(dataset_bytes, quota.memory_bytes + quota.disk_bytes)) return false;
    // Compressing less than a page saves nothing on disk and little in memory.
    return payload_bytes >= protocol::kPageBytes;
}

Admission::Block Admission::use_slot(const Fetch& fetch, std::uint32_t payload_crc) {
    fetch.consumer->refer();
    fetch.consumer->mark_busy(fetch);
    if (fetch.trace) [[unlikely]]
        tracer_.join(fetch.trace);
    return {.consumer = fetch.consumer,
            .slot = fetch.consumer->slot(fetch),
            .slot_page = fetch.slot_page,
            .slot_pages = fetch.slot_pages,
            .block_id = fetch.block_id,
            .payload_bytes = fetch.payload_bytes,
            .payload_crc = payload_crc,
            .trace = fetch.trace};
}

void Admission::note_admitted(const Block& block, Admitted to) {
    if (BlockTrace* trace = tracer_.find(block.trace)) trace->admitted = to;
    admitted_(block.block_id, block.payload_bytes);
}

void Admission::release_slot(const Block& block) {
    block.consumer->clear_busy(block.slot_page, block.slot_pages);
    block.consumer->unrefer();
}

void Admission::admit(const Fetch& fetch, std::uint32_t payload_crc, std::uint64_t dataset_bytes) {
    if (!compresses(fetch.payload_bytes, dataset_bytes)) {
        if (admit_to_memory(fetch, payload_crc)) return;
        const auto reserved = store_.reserve(Tier::disk, fetch.block_id, fetch.payload_bytes);
        if (!reserved) return;
        ++in_flight_;
        write_slot(use_slot(fetch, payload_crc), *reserved);
        return;
    }
    const auto expected_bytes = static_cast<std::uint32_t>(fetch.payload_bytes * choice_.stored_ratio());
    const bool is_over_limit =
        compressor_.bytes_in_flight() > 0 && compressor_.bytes_in_flight() + fetch.payload_bytes > kCompressingBytesMax;
    // Skips compression if the quota has no room for the result.
    if (is_over_limit || store_.find(fetch.block_id) || !store_.has_room(expected_bytes)) return;
    if (idle_.empty()) {
        compressing_.push_back(std::make_unique<Compressing>());
        idle_.push_back(compressing_.back().get());
    }
    Compressing& work = *idle_.back();
    idle_.pop_back();
    ++in_flight_;
    work.admission = this;
    work.block = use_slot(fetch, payload_crc);
    work.raw = {work.block.slot + kRecordHeaderBytes, work.block.payload_bytes};
    work.level = choice_.requested().level;
    work.done = [](CompressWork& done) noexcept {
        auto& finished = static_cast<Compressing&>(done);
        finished.admission->finish_compression(finished);
    };
    if (work.block.trace) [[unlikely]]
        tracer_.open(work.block.trace, TraceStep::compress);
    compressor_.start(work);
}

// Copies the block to memory if there is room. Needed for a block that was read into a slot to be compressed, but is
// not compressed any more, and for a block refetched while an older copy was cached. For other blocks, memory was tried
// before the read.
bool Admission::admit_to_memory(const Fetch& fetch, std::uint32_t payload_crc) {
    if (choice_.requested().kind == CompressionKind::none && !fetch.is_refetch) return false;
    const auto reserved = store_.reserve(Tier::memory, fetch.block_id, fetch.payload_bytes);
    if (!reserved) return false;
    const std::byte* payload = fetch.consumer->slot(fetch) + kRecordHeaderBytes;
    std::memcpy(store_.payload(*reserved).data(), payload, fetch.payload_bytes);
    if (store_.commit(*reserved, payload_crc)) {
        note_admitted({.block_id = fetch.block_id, .payload_bytes = fetch.payload_bytes, .trace = fetch.trace},
                      Admitted::memory);
    }
    return true;
}

void Admission::write_slot(const Block& block, const Reservation& reservation) {
    Write& write = *writes_.take();
    write.admission = this;
    write.block = block;
    write.reservation = reservation;
    write.payload_crc = block.payload_crc;
    write.record = {block.slot, std::size_t{block.slot_pages} * protocol::kPageBytes};
    write.finished = [](StoreWrite& done, std::int32_t result) noexcept {
        auto& written = static_cast<Write&>(done);
        Admission& admission = *written.admission;
        admission.end_write(written.block, result == 0);
        admission.release_slot(written.block);
        admission.end_trace(written.block);
        --admission.in_flight_;
        admission.writes_.release(&written);
    };
    if (block.trace) [[unlikely]]
        tracer_.open(block.trace, TraceStep::disk_write);
    if (store_.write(write)) return;
    end_write(block, false);
    release_slot(block);
    end_trace(block);
    --in_flight_;
    writes_.release(&write);
}

// Admits a block that compression did not shrink enough.
void Admission::admit_uncompressed(const Block& block) {
    if (const auto reserved = store_.reserve(Tier::memory, block.block_id, block.payload_bytes)) {
        std::memcpy(store_.payload(*reserved).data(), block.slot + kRecordHeaderBytes, block.payload_bytes);
        if (store_.commit(*reserved, block.payload_crc)) note_admitted(block, Admitted::memory);
    } else if (const auto on_disk = store_.reserve(Tier::disk, block.block_id, block.payload_bytes)) {
        write_slot(block, *on_disk);
        return;
    }
    release_slot(block);
    end_trace(block);
    --in_flight_;
}

void Admission::finish_compression(Compressing& work) {
    if (work.block.trace) [[unlikely]]
        tracer_.close(work.block.trace, TraceStep::compress);
    choice_.note(work.block.payload_bytes, work.stored_bytes > 0 ? work.stored_bytes : work.block.payload_bytes);
    if (work.stored_bytes == 0) {
        const Block block = work.block;
        idle_.push_back(&work);
        admit_uncompressed(block);
        return;
    }
    // The compressor has read the slot.
    release_slot(work.block);
    if (!admit_compressed(work)) release(work);
}

// True if a disk write was started. The write releases `work` when it ends.
bool Admission::admit_compressed(Compressing& work) {
    const Block& block = work.block;
    const protocol::CompressedBlock compressed_block{.raw_bytes = block.payload_bytes, .raw_crc = block.payload_crc};
    if (auto reserved = store_.reserve(Tier::memory, block.block_id, work.stored_bytes)) {
        reserved->of = compressed_block;
        std::memcpy(store_.payload(*reserved).data(), work.record().data() + kRecordHeaderBytes, work.stored_bytes);
        if (store_.commit(*reserved, work.stored_crc)) note_admitted(block, Admitted::memory);
        return false;
    }
    auto reserved = store_.reserve(Tier::disk, block.block_id, work.stored_bytes);
    if (!reserved) return false;
    reserved->of = compressed_block;
    work.write.work = &work;
    work.write.reservation = *reserved;
    work.write.payload_crc = work.stored_crc;
    work.write.record = work.record();
    work.write.finished = [](StoreWrite& done, std::int32_t result) noexcept {
        Compressing& written = *static_cast<Compressing::Stored&>(done).work;
        Admission& admission = *written.admission;
        admission.end_write(written.block, result == 0);
        admission.release(written);
    };
    if (block.trace) [[unlikely]]
        tracer_.open(block.trace, TraceStep::disk_write);
    if (store_.write(work.write)) return true;
    end_write(block, false);
    return false;
}

void Admission::end_write(const Block& block, bool is_written) {
    if (block.trace) [[unlikely]]
        tracer_.close(block.trace, TraceStep::disk_write);
    if (is_written) note_admitted(block, Admitted::disk);
}

void Admission::end_trace(const Block& block) {
    if (block.trace) [[unlikely]]
        tracer_.leave(block.trace);
}

void Admission::release(Compressing& work) {
    end_trace(work.block);
    --in_flight_;
    idle_.push_back(&work);
}

}  // namespace larder::cache
