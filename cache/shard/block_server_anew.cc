// BlockServer: blocks that a reader found damaged by what stands in them (a record's checksum, a compressed frame). The
// reader is not believed: the remote is asked, and what the daemon sees decides. So a client that lies costs itself a
// read, and others nothing.

#include "base/hash.h"
#include "base/server/logging.h"
#include "cache/protocol/record.h"
#include "cache/shard/block_server.h"

namespace larder::cache {

namespace {

// After so many reads that brought other bytes each time, a block counts as bad.
constexpr std::uint32_t kReadAnewMax = 2;

}  // namespace

using protocol::kRecordHeaderBytes;

// Takes in that a reader found it damaged. What memory itself spoiled goes out of the cache here: reads from disk are
// always checked.
bool BlockServer::known_bad(Fetch& fetch) {
    if (const auto known = read_anew_.find(fetch.block_id); known != read_anew_.end()) {
        // It had older bytes than those that came anew for another: it gets these like anybody.
        fetch.anew = known->second.crc == fetch.damaged_crc;
        if (!fetch.anew) return false;
        if (quarantine_.reported(fetch.block_id)) return true;
    }
    const auto location = store_->find(fetch.block_id);
    if (!location || location->segment->tier() != Tier::memory) return false;
    const std::byte* payload = location->segment->memory() + location->offset + kRecordHeaderBytes;
    if (crc32c({payload, location->payload_bytes}) == location->payload_crc) return false;
    for (BlockCounters* counters : {&counters_, &fetch.consumer->job().counters}) ++counters->crc_failures;
    forget(fetch.block_id);
    return false;
}

// Of the block once decompressed; nothing where only its record on disk says it.
std::optional<std::uint32_t> BlockServer::cached_crc(const BlockLocation& location) const {
    if (!location.compressed()) return location.payload_crc;
    if (location.segment->tier() != Tier::memory) return std::nullopt;
    const auto header =
        protocol::read_record_header({location.segment->memory() + location.offset, kRecordHeaderBytes});
    return header ? std::optional(header->raw_crc) : std::nullopt;
}

// The remote has been read for somebody who found the block damaged.
void BlockServer::settle_read_anew(const Miss& miss, std::uint32_t payload_crc) {
    const Fetch* reader = nullptr;
    bool same_again = false;
    for (const Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter) {
        if (!waiter->anew) continue;
        reader = waiter;
        same_again |= waiter->damaged_crc == payload_crc;
    }
    if (reader == nullptr) return;
    const auto location = store_->find(miss.block_id);
    if (location && cached_crc(*location) != payload_crc) forget(miss.block_id);
    ReadAnew& known = read_anew_[miss.block_id];
    known.crc = payload_crc;
    if (!same_again && ++known.times < kReadAnewMax) return;
    Job& job = reader->consumer->job();
    for (BlockCounters* counters : {&counters_, &job.counters}) ++counters->remote_corrupt;
    const protocol::Manifest& manifest = miss.leader->consumer->manifest();
    quarantine_.add_reported(manifest, miss.block);
    const protocol::Block block = manifest.block(miss.block);
    log_warn("a block is damaged at the remote, as its reader says",
             {{"dataset", name_},
              {"job", job.name},
              {"object", std::string(manifest.object(block.object).path)},
              {"offset", block.offset},
              {"bytes", block.length}});
}

void BlockServer::note_remote_bytes(std::uint32_t block_id, std::uint32_t crc) {
    const auto known = read_anew_.find(block_id);
    if (known == read_anew_.end() || known->second.crc == crc) return;
    read_anew_.erase(known);
    quarantine_.end_reported(block_id);
}

}  // namespace larder::cache
