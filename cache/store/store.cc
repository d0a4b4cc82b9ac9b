#include "cache/store/store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "cache/protocol/record.h"
#include "cache/store/index.h"
#include "cache/store/segment_header.h"

namespace larder::cache {

using protocol::kRecordHeaderBytes;
using protocol::record_bytes;

namespace {

constexpr unsigned kBadPlacesMax = 4;
constexpr std::uint64_t kSegmentsOfWindow = 8;

}  // namespace

DatasetStore::DatasetStore(StoreOptions options, Device& device, const Clock& clock, Index* index)
    : options_(std::move(options)),
      clock_(clock),
      index_(index),
      table_(options_.block_id_end),
      spaces_{SegmentSpace({}), SegmentSpace({.header_bytes = kSegmentHeaderBytes}),
              SegmentSpace({.per_quota = kSegmentsOfWindow, .bytes_min = 1})},
      disk_(*this, device, clock, options_.dataset_id, options_.segment_directory, options_.disk_alignment) {
    static_assert(kSegmentHeaderBytes % kOffsetUnitBytes == 0 && kMemoryAlignment % kOffsetUnitBytes == 0);
}

DatasetStore::~DatasetStore() {
    for (auto* segments : {&segments_, &draining_}) {
        for (auto& segment : *segments) {
            if (segment != nullptr && segment->tier_ == Tier::disk) disk_.close(*segment);
        }
    }
}

std::optional<BlockLocation> DatasetStore::find(std::uint32_t block_id) const {
    LARDER_ASSERT(block_id < table_.block_id_end());
    const BlockTable::Entry& entry = table_[block_id];
    if (!entry.found()) return std::nullopt;
    return BlockLocation{segments_[entry.slot].get(), entry.offset(), entry.payload_bytes, entry.payload_crc,
                         table_.raw_bytes(block_id)};
}

std::expected<Reservation, Refusal> DatasetStore::reserve(Tier tier, std::uint32_t block_id,
                                                          std::uint32_t payload_bytes) {
    LARDER_ASSERT(block_id < table_.block_id_end() && payload_bytes <= options_.block_bytes_max);
    std::expected<Reservation, Refusal> reservation = std::unexpected(Refusal::already_cached);
    if (table_[block_id].slot == BlockTable::kAbsent) {
        reservation = tier == Tier::memory ? reserve_in_memory(block_id, payload_bytes)
                                           : reserve_on_disk(block_id, payload_bytes);
    }
    if (!reservation && tier == Tier::disk) refused_[static_cast<std::size_t>(reservation.error())]++;
    return reservation;
}

std::expected<Reservation, Refusal> DatasetStore::reserve_in_memory(std::uint32_t block_id,
                                                                    std::uint32_t payload_bytes) {
    SegmentSpace& memory = space(Room::memory);
    const std::uint64_t bytes = record_bytes(payload_bytes, kMemoryAlignment);
    if (!memory.fits_quota(bytes)) return std::unexpected(Refusal::quota_reached);
    auto found = memory.take(bytes);
    if (!found) {
        const std::uint64_t bytes_max = record_bytes(options_.block_bytes_max, kMemoryAlignment);
        const auto size = memory.segment_bytes(bytes, bytes_max);
        if (!size || !add_memory_segment(*size, false)) return std::unexpected(Refusal::quota_reached);
        found = memory.take(bytes);
    }
    found->segment->back_memory(found->offset + bytes);
    return make_reservation(*found, block_id, payload_bytes);
}

std::optional<Reservation> DatasetStore::reserve_in_window(std::uint32_t block_id, std::uint32_t payload_bytes,
                                                           const DropObserver& observer) {
    LARDER_ASSERT(block_id < table_.block_id_end() && payload_bytes <= options_.block_bytes_max);
    SegmentSpace& window = space(Room::window);
    const std::uint64_t bytes = record_bytes(payload_bytes, kMemoryAlignment);
    if (table_[block_id].slot != BlockTable::kAbsent || bytes > window.quota_bytes()) return std::nullopt;
    for (;;) {
        if (window.fits_quota(bytes)) {
            if (const auto found = window.take(bytes)) {
                found->segment->back_memory(found->offset + bytes);
                return make_reservation(*found, block_id, payload_bytes);
            }
            const auto size = window.segment_bytes(bytes, record_bytes(options_.block_bytes_max, kMemoryAlignment));
            if (size && !add_memory_segment(*size, true)) return std::nullopt;
            if (size) continue;
        }
        if (!drop_from_window(observer)) return std::nullopt;
    }
}

std::expected<Reservation, Refusal> DatasetStore::reserve_on_disk(std::uint32_t block_id, std::uint32_t payload_bytes) {
    SegmentSpace& disk = space(Room::disk);
    if (options_.segment_directory.empty() || !disk.fits_quota(payload_bytes + kRecordHeaderBytes)) {
        return std::unexpected(Refusal::quota_reached);
    }
    const auto alignment = disk_.alignment();
    if (!alignment || !disk_.admits()) {
        return std::unexpected(disk_.full() ? Refusal::disk_full : Refusal::disk_failed);
    }
    const std::uint64_t bytes = record_bytes(payload_bytes, *alignment);
    if (!disk.fits_quota(bytes)) return std::unexpected(Refusal::quota_reached);
    if (write_bytes_in_flight_ > 0 && write_bytes_in_flight_ + bytes > options_.write_bytes_in_flight_max) {
        return std::unexpected(Refusal::busy);
    }
    auto found = disk.take(bytes);
    if (!found) {
        const std::uint64_t bytes_max = record_bytes(options_.block_bytes_max, *alignment);
        const auto size = disk.segment_bytes(bytes, bytes_max);
        if (!size) return std::unexpected(Refusal::quota_reached);
        add_disk_segment(*size, *alignment);
        found = disk.take(bytes);
    }
    write_bytes_in_flight_ += bytes;
    return make_reservation(*found, block_id, payload_bytes);
}

Reservation DatasetStore::make_reservation(SegmentSpace::Place place, std::uint32_t block_id,
                                           std::uint32_t payload_bytes) {
    table_.set_pending(block_id);
    place.segment->references_++;
    place.segment->unwritten_++;
    return Reservation{place.segment, place.offset, block_id, payload_bytes, {}};
}

bool DatasetStore::has_room(std::uint32_t payload_bytes) const {
    const bool on_disk =
        !options_.segment_directory.empty() && space(Room::disk).fits_quota(payload_bytes + kRecordHeaderBytes);
    return on_disk || space(Room::memory).fits_quota(record_bytes(payload_bytes, kMemoryAlignment));
}

std::optional<Refusal> DatasetStore::why_no_room(std::uint32_t payload_bytes) const {
    if (space(Room::memory).fits_quota(record_bytes(payload_bytes, kMemoryAlignment))) return std::nullopt;
    if (!has_room(payload_bytes)) return Refusal::quota_reached;
    // The pause after a failure is over, so the disk is to be tried again.
    if (disk_.admits()) return std::nullopt;
    return disk_.full() ? Refusal::disk_full : Refusal::disk_failed;
}

std::span<std::byte> DatasetStore::payload(const Reservation& reservation) const {
    LARDER_ASSERT(!reservation.on_disk());
    return {reservation.segment->memory() + reservation.offset + kRecordHeaderBytes, reservation.payload_bytes};
}

bool DatasetStore::commit(const Reservation& reservation, std::uint32_t payload_crc) {
    LARDER_ASSERT(!reservation.on_disk());
    Segment& segment = *reservation.segment;
    const auto header =
        protocol::make_record_header(options_.dataset_id, reservation.block_id, reservation.payload_bytes, payload_crc,
                                     segment.id(), reservation.of);
    std::memcpy(segment.memory() + reservation.offset, &header, sizeof header);
    const bool findable = make_findable(reservation, payload_crc);
    release(segment);
    return findable;
}

void DatasetStore::abandon(const Reservation& reservation) {
    if (reservation.on_disk()) {
        write_bytes_in_flight_ -= record_bytes(reservation.payload_bytes, reservation.segment->alignment());
    }
    release_space(reservation);
    release(*reservation.segment);
}

bool DatasetStore::write(StoreWrite& write) {
    const Reservation& reservation = write.reservation;
    Segment& segment = *reservation.segment;
    LARDER_ASSERT(reservation.on_disk());
    if (segment.dropped()) {
        abandon(reservation);
        return false;
    }
    const std::uint64_t bytes = record_bytes(reservation.payload_bytes, segment.alignment());
    LARDER_ASSERT(write.record.size() >= bytes);
    write.record = write.record.first(bytes);
    const auto header =
        protocol::make_record_header(options_.dataset_id, reservation.block_id, reservation.payload_bytes,
                                     write.payload_crc, segment.id(), reservation.of);
    std::memcpy(write.record.data(), &header, sizeof header);
    std::ranges::fill(write.record.subspan(kRecordHeaderBytes + reservation.payload_bytes), std::byte{0});
    write.store = this;
    write.next = nullptr;
    write.written_bytes = 0;
    disk_.write(write);
    return true;
}

void DatasetStore::finish_write(StoreWrite& write, std::int32_t result) {
    const Reservation reservation = write.reservation;
    write_bytes_in_flight_ -= write.record.size();
    if (is_bad_place(result)) {
        retire_space(reservation);
    } else if (result != 0) {
        release_space(reservation);
    } else if (!make_findable(reservation, write.payload_crc)) {
        result = -ECANCELED;
    }
    release(*reservation.segment);
    write.finished(write, result);
}

bool DatasetStore::make_findable(const Reservation& reservation, std::uint32_t payload_crc) {
    Segment& segment = *reservation.segment;
    LARDER_ASSERT(table_[reservation.block_id].slot == BlockTable::kPending);
    if (segment.dropped()) {
        table_.clear(reservation.block_id);
        segment.unwritten_--;
        return false;
    }
    const StoredBlock block{.offset_units = static_cast<std::uint32_t>(reservation.offset / kOffsetUnitBytes),
                            .block_id = reservation.block_id,
                            .payload_bytes = reservation.payload_bytes,
                            .payload_crc = payload_crc,
                            .raw_bytes = reservation.of.raw_bytes};
    add_entry(segment, block);
    if (segment.tier() == Tier::disk && index_ != nullptr) {
        index_->put_block(options_.dataset_id, segment.id(), block);
    }
    end_reservation(segment);
    return true;
}

void DatasetStore::add_entry(Segment& segment, const StoredBlock& block) {
    table_.set(block.block_id,
               {.slot = segment.slot_,
                .offset_units = block.offset_units,
                .payload_bytes = block.payload_bytes,
                .payload_crc = block.payload_crc},
               block.raw_bytes);
    segment.block_ids_.push_back(block.block_id);
    Found& of_room = found(segment);
    of_room.payload_bytes += table_.raw_bytes(block.block_id);
    of_room.record_bytes += record_bytes(block.payload_bytes, segment.alignment());
    ++of_room.blocks;
}

void DatasetStore::release_space(const Reservation& reservation) {
    LARDER_ASSERT(table_[reservation.block_id].slot == BlockTable::kPending);
    table_.clear(reservation.block_id);
    Segment& segment = *reservation.segment;
    if (segment.dropped()) {
        segment.unwritten_--;
        return;
    }
    space(room_of(segment))
        .release_space({&segment, reservation.offset}, record_bytes(reservation.payload_bytes, segment.alignment()));
    end_reservation(segment);
}

// Leaves the room used: a place where a write failed would fail the next one, too. After kBadPlacesMax such failures
// the segment takes no more records: more likely the disk fails as a whole, and each try costs room.
void DatasetStore::retire_space(const Reservation& reservation) {
    LARDER_ASSERT(table_[reservation.block_id].slot == BlockTable::kPending);
    table_.clear(reservation.block_id);
    Segment& segment = *reservation.segment;
    if (segment.dropped()) {
        segment.unwritten_--;
        return;
    }
    if (index_ != nullptr) {
        index_->put_block(options_.dataset_id, segment.id(),
                          {.offset_units = static_cast<std::uint32_t>(reservation.offset / kOffsetUnitBytes),
                           .block_id = StoredBlock::kRetiredId,
                           .payload_bytes = reservation.payload_bytes});
    }
    if (++segment.bad_places_ == kBadPlacesMax) space(room_of(segment)).close(segment);
    end_reservation(segment);
}

// The index learns that a segment is sealed only once all its records are there: the next start does not look for
// records in a sealed segment.
void DatasetStore::end_reservation(Segment& segment) {
    segment.unwritten_--;
    const bool is_complete = segment.sealed_ && segment.unwritten_ == 0;
    if (is_complete && segment.tier() == Tier::disk && segment.state_ == Segment::State::ready) {
        put_segment_into_index(segment);
    }
}

void DatasetStore::forget(std::uint32_t block_id) {
    drop_block(block_id, StoredBlock::kDroppedId);
}

void DatasetStore::retire(std::uint32_t block_id) {
    drop_block(block_id, StoredBlock::kRetiredId);
}

void DatasetStore::drop_block(std::uint32_t block_id, std::uint32_t id_left) {
    LARDER_ASSERT(block_id < table_.block_id_end());
    const BlockTable::Entry entry = table_[block_id];
    if (!entry.found()) return;
    Segment& segment = *segments_[entry.slot];
    const auto found = std::ranges::find(segment.block_ids_, block_id);
    LARDER_ASSERT(found != segment.block_ids_.end());
    segment.block_ids_.erase(found);
    clear_entry(segment, block_id, id_left);
}

// Removes a block that can be found from the table, but not from its segment's list.
void DatasetStore::remove_entry(const Segment& segment, std::uint32_t block_id) {
    Found& of_room = found(segment);
    of_room.payload_bytes -= table_.raw_bytes(block_id);
    of_room.record_bytes -= record_bytes(table_[block_id].payload_bytes, segment.alignment());
    --of_room.blocks;
    table_.clear(block_id);
}

// `id_left`: what the index keeps in place of the block.
void DatasetStore::clear_entry(const Segment& segment, std::uint32_t block_id, std::uint32_t id_left) {
    const StoredBlock dropped{.offset_units = table_[block_id].offset_units,
                              .block_id = id_left,
                              .payload_bytes = table_[block_id].payload_bytes};
    remove_entry(segment, block_id);
    if (segment.tier() == Tier::disk && index_ != nullptr) {
        index_->put_block(options_.dataset_id, segment.id(), dropped);
    }
}

void DatasetStore::add_reference(const Segment& segment) {
    const_cast<Segment&>(segment).references_++;
}

void DatasetStore::drop_reference(const Segment& segment) {
    release(const_cast<Segment&>(segment));
}

void DatasetStore::release(Segment& segment) {
    LARDER_ASSERT(segment.references_ > 0);
    if (--segment.references_ > 0 || !segment.dropped()) return;
    if (segment.tier() == Tier::disk) {
        disk_.close(segment);
    } else if (options_.unmap_on_another_thread) {
        // Closes the descriptor first, so that the mapping is the last to hold the pages.
        segment.fd_.reset();
        options_.unmap_on_another_thread(std::make_shared<const Mapping>(std::move(segment.memory_)));
    }
    std::erase_if(draining_, [&](const auto& draining) { return draining.get() == &segment; });
}

void DatasetStore::grow_block_ids(std::uint32_t block_id_end, std::uint32_t block_bytes_max) {
    table_.grow(block_id_end);
    options_.block_bytes_max = std::max(options_.block_bytes_max, block_bytes_max);
}

Quota DatasetStore::quota() const {
    return {.memory_bytes = space(Room::memory).quota_bytes(), .disk_bytes = space(Room::disk).quota_bytes()};
}

StoreUsage DatasetStore::usage() const {
    const SegmentSpace& memory = space(Room::memory);
    const SegmentSpace& disk = space(Room::disk);
    const SegmentSpace& window = space(Room::window);
    const auto& [in_memory, on_disk, in_window] = found_;
    return {.memory_bytes = memory.used_bytes(),
            .disk_bytes = disk.used_bytes(),
            .memory_allocated_bytes = memory.allocated_bytes(),
            .disk_allocated_bytes = disk.allocated_bytes(),
            .payload_bytes = in_memory.payload_bytes + on_disk.payload_bytes,
            .record_bytes = in_memory.record_bytes + on_disk.record_bytes,
            .disk_payload_bytes = on_disk.payload_bytes,
            .disk_record_bytes = on_disk.record_bytes,
            .blocks = in_memory.blocks + on_disk.blocks,
            .memory_segments = memory.segment_count(),
            .disk_segments = disk.segment_count(),
            .draining_segments = static_cast<std::uint32_t>(draining_.size()),
            .window_bytes = window.used_bytes(),
            .window_allocated_bytes = window.allocated_bytes(),
            .window_blocks = in_window.blocks};
}

std::uint64_t DatasetStore::admissions_refused(Refusal refusal) const {
    return refused_[static_cast<std::size_t>(refusal)];
}

void DatasetStore::retry_disk() {
    disk_.end_pause();
}
bool DatasetStore::disk_full() const {
    return disk_.full();
}
const std::optional<Error>& DatasetStore::disk_problem() const {
    return disk_.problem();
}
std::uint32_t DatasetStore::operations_in_flight() const {
    return disk_.operations_in_flight();
}

}  // namespace larder::cache
