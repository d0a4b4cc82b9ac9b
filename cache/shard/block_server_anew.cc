// BlockServer: blocks that a reader found damaged by what stands in them (a record's checksum, a compressed frame). The
// reader is not believed: the remote is asked, and what the daemon sees decides. So a client that lies costs itself a
// read, and others at most one: of a block that lies compressed on disk, whose bytes its place in memory does not tell.

#include "base/hash.h"
#include "base/server/logging.h"
#include "cache/protocol/record.h"
#include "cache/shard/block_server.h"

namespace larder::cache {

namespace {

// After so many reads that brought other bytes each time, a block counts as bad.
constexpr std::uint32_t kReadAnewMax = 2;
// A reader that lies again and again has memory checked no more often.
constexpr std::int64_t kCheckedFor_ns = 1'000'000'000;

}  // namespace

using protocol::kRecordHeaderBytes;

// The remote has been asked already, and it stays so.
bool BlockServer::reported_bad(const Fetch& fetch) const {
    const auto known = read_anew_.find(fetch.block_id);
    return known != read_anew_.end() && known->second.crc == fetch.damaged_crc && quarantine_.reported(fetch.block_id);
}

// A reader found it damaged. What memory itself spoiled goes out of the cache here: reads from disk are always checked.
// Who had older bytes than those that came anew for another gets these, where the cache has them.
void BlockServer::judge_report(Fetch& fetch) {
    if (missing_.contains(fetch.block_id)) return;
    const auto location = store_->find(fetch.block_id);
    if (!location) return;
    const auto known = read_anew_.find(fetch.block_id);
    const bool checked = known != read_anew_.end() && now_ns_ < known->second.checked_ns + kCheckedFor_ns;
    if (location->segment->tier() == Tier::memory && !checked) {
        if (known != read_anew_.end()) known->second.checked_ns = now_ns_;
        const std::byte* payload = location->segment->memory() + location->offset + kRecordHeaderBytes;
        if (crc32c({payload, location->payload_bytes}) != location->payload_crc) {
            for (BlockCounters* counters : {&counters_, &fetch.consumer->job().counters}) ++counters->crc_failures;
            forget(fetch.block_id);
            return;
        }
    }
    if (known == read_anew_.end() || known->second.crc == fetch.damaged_crc) return;
    fetch.anew = cached_crc(*location).value_or(known->second.crc) != known->second.crc;
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
    const auto [entry, is_first] = read_anew_.try_emplace(miss.block_id);
    // Where the cache does not say what it has, the first report is believed, and no other.
    const std::uint32_t unsaid_crc = is_first ? ~payload_crc : payload_crc;
    if (location && cached_crc(*location).value_or(unsaid_crc) != payload_crc) forget(miss.block_id);
    ReadAnew& known = entry->second;
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
