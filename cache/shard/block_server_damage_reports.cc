// The part of BlockServer that handles blocks whose content a reader found damaged (a record's checksum, a compressed
// frame). The daemon does not trust the report: it reads the remote and decides by the bytes it gets. So a false
// report costs its client one read. It costs the other clients at most one read, of a block that is compressed on disk:
// the CRC of its decompressed bytes is not in memory, so the cache drops the block.

#include "base/hash.h"
#include "base/server/logging.h"
#include "cache/protocol/record.h"
#include "cache/shard/block_server.h"

namespace larder::cache {

namespace {

// A block counts as bad after this many refetches that each brought other bytes.
constexpr std::uint32_t kRefetchesMax = 2;
// The least time between two checks of a block in memory. Bounds the cost of repeated false reports.
constexpr std::int64_t kCheckedFor_ns = 1'000'000'000;

}  // namespace

using protocol::kRecordHeaderBytes;

// True if the remote has already returned these damaged bytes and the block is quarantined as reported.
bool BlockServer::is_reported_bad(const Fetch& fetch) const {
    const auto known = refetched_.find(fetch.block_id);
    return known != refetched_.end() && known->second.crc == fetch.damaged_crc && quarantine_.reported(fetch.block_id);
}

// Judges a reader's report of a damaged block. Drops the block if its copy in memory is corrupt; disk reads need no
// check here, because they are always checked. Clears `fetch.is_refetch` if the cache holds newer bytes, refetched for
// another reader: the reader then gets the newer bytes.
void BlockServer::check_damage_report(Fetch& fetch) {
    if (missing_.contains(fetch.block_id)) return;
    const auto location = store_->find(fetch.block_id);
    if (!location) return;
    const auto known = refetched_.find(fetch.block_id);
    const bool is_checked = known != refetched_.end() && now_ns_ < known->second.checked_ns + kCheckedFor_ns;
    if (location->segment->tier() == Tier::memory && !is_checked) {
        if (known != refetched_.end()) known->second.checked_ns = now_ns_;
        const std::byte* payload = location->segment->memory() + location->offset + kRecordHeaderBytes;
        if (crc32c({payload, location->payload_bytes}) != location->payload_crc) {
            for (BlockCounters* counters : {&counters_, &fetch.consumer->job().counters}) ++counters->crc_failures;
            forget(fetch.block_id);
            return;
        }
    }
    if (known == refetched_.end() || known->second.crc == fetch.damaged_crc) return;
    fetch.is_refetch = cached_crc(*location).value_or(known->second.crc) != known->second.crc;
}

// Returns the CRC of the cached block's decompressed bytes; nullopt if only the record on disk has that CRC.
std::optional<std::uint32_t> BlockServer::cached_crc(const BlockLocation& location) const {
    if (!location.compressed()) return location.payload_crc;
    if (location.segment->tier() != Tier::memory) return std::nullopt;
    const auto header =
        protocol::read_record_header({location.segment->memory() + location.offset, kRecordHeaderBytes});
    return header ? std::optional(header->raw_crc) : std::nullopt;
}

// Settles the damage reports of the waiters of `miss` after the remote was read. Does nothing if there are none.
void BlockServer::settle_damage_reports(const Miss& miss, std::uint32_t payload_crc) {
    const Fetch* reader = nullptr;
    bool same_again = false;
    for (const Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter) {
        if (!waiter->is_refetch) continue;
        reader = waiter;
        same_again |= waiter->damaged_crc == payload_crc;
    }
    if (reader == nullptr) return;
    const auto location = store_->find(miss.block_id);
    const auto [entry, is_first] = refetched_.try_emplace(miss.block_id);
    // If the CRC of the cached copy is unknown, only the first report drops the copy.
    const std::uint32_t assumed_crc = is_first ? ~payload_crc : payload_crc;
    if (location && cached_crc(*location).value_or(assumed_crc) != payload_crc) forget(miss.block_id);
    DamageReport& known = entry->second;
    known.crc = payload_crc;
    if (!same_again && ++known.refetches < kRefetchesMax) return;
    ShardJob& job = reader->consumer->job();
    for (BlockCounters* counters : {&counters_, &job.counters}) ++counters->remote_corrupt;
    const protocol::Manifest& manifest = miss.leader->consumer->manifest();
    quarantine_.add_reported(manifest, miss.block);
    const protocol::Block block = manifest.block(miss.block);
    log_warn("a loader reported a block that is damaged at the remote",
             {{"dataset", name_},
              {"job", job.name},
              {"object", std::string(manifest.object(block.object).path)},
              {"offset", block.offset},
              {"bytes", block.length}});
}

void BlockServer::note_remote_bytes(std::uint32_t block_id, std::uint32_t crc) {
    const auto known = refetched_.find(block_id);
    if (known == refetched_.end() || known->second.crc == crc) return;
    refetched_.erase(known);
    quarantine_.end_reported(block_id);
}

}  // namespace larder::cache
