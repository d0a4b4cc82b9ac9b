// BlockClient: blocks that turn out to be damaged when they are decompressed or parsed. They are requested from the
// daemon again.

#include <utility>

#include "base/hash.h"
#include "loader/block_client.h"
#include "loader/failure_reason.h"

namespace larder::detail {

using protocol::BlockStatus;

std::optional<std::uint32_t> BlockClient::refetch_damaged(std::uint32_t tag, std::string damage) {
    // A refetched block that is damaged is damaged for good. A second report is useful only if the first had no
    // checksum of the damaged bytes, and the second has one.
    const bool is_report_useless = table_[tag].damaged_crc != 0 || table_[tag].compressed_crc == 0;
    if (table_[tag].is_refetch && is_report_useless) return std::nullopt;
    const std::uint32_t block = table_[tag].block;
    // The block was refetched before, and its bytes have changed. Use the new ones.
    if (!table_[tag].found) return acquire(block, kNoBundle).tag;
    // Another sample found the block damaged before. Both wait for the same refetch.
    if (const std::uint32_t pending = table_[tag].refetch_tag;
        table_.contains(pending) && table_[pending].is_refetch && table_[pending].block == block) {
        ++table_[pending].references;
        return pending;
    }
    const std::uint32_t duplicate = table_.acquire_duplicate(block);
    table_[tag].refetch_tag = duplicate;
    BlockEntry& entry = table_[duplicate];
    entry.length = manifest_.block_bytes(block);
    entry.is_refetch = true;
    entry.pass = pass_;
    entry.damage = std::move(damage);
    entry.bundle = table_[tag].bundle;
    entry.had_slot = table_[tag].had_slot;
    entry.slot_page = table_[tag].slot_page;
    // The compressed bytes of a block compressed at the remote are gone. Only a refetched block has their checksum.
    const bool is_as_at_remote = table_[tag].bytes().size() == entry.length && manifest_.block(block).raw_bytes == 0;
    entry.damaged_crc = is_as_at_remote ? crc32c(table_[tag].bytes()) : table_[tag].compressed_crc;
    want_first(duplicate);
    return duplicate;
}

std::string BlockClient::failure_reason_of(const BlockEntry& entry) const {
    return failure_reason(
        {.socket = socket_path_, .dataset = options_.dataset, .manifest_version = version_, .block = entry.block});
}

// Releases the block's shared memory at once, because readers use the decompressed copy.
void BlockClient::take_decompressed(std::uint32_t tag, std::span<const std::byte> bytes,
                                    Result<std::unique_ptr<std::byte[]>> raw, std::uint32_t raw_bytes) {
    BlockEntry& entry = table_[tag];
    const std::uint32_t damaged_crc = raw ? 0 : crc32c(bytes);
    if (raw && entry.is_refetch && bytes.size() == manifest_.block(entry.block).length)
        entry.compressed_crc = crc32c(bytes);
    release_memory(entry);
    if (!raw && raw.error().code == ErrorCode::corrupt) {
        const bool should_refetch = !std::exchange(entry.is_refetch, true);
        entry.damage = "it is compressed, and cannot be decompressed to the size in its index";
        entry.damaged_crc = damaged_crc;
        if (should_refetch) {
            want_first(tag);
            return;
        }
    }
    if (!raw) {
        entry.state = BlockState::failed;
        entry.status = raw.error().code == ErrorCode::corrupt ? BlockStatus::object_corrupt : BlockStatus::ok;
        return;
    }
    entry.raw = std::move(*raw);
    entry.raw_bytes = raw_bytes;
    entry.data = entry.raw.get();
}

}  // namespace larder::detail
