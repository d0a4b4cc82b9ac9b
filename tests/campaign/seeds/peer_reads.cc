#include "tests/campaign/seeds/peer_reads.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "cache/protocol/record.h"

namespace larder::campaign {

using protocol::BlockStatus;

PeerReads::Request& PeerReads::start(cache::RemoteRead& read) {
    auto made = std::make_unique<Request>();
    Request& request = *made;
    request.reads = this;
    request.read = &read;
    request.number = ++last_number_;
    request.done = [](cache::Operation& operation, std::int32_t) noexcept {
        auto& ended = static_cast<Request&>(operation);
        const std::unique_ptr<Request> owned = std::move(ended.reads->requests_->by_number.at(ended.number));
        ended.reads->requests_->by_number.erase(ended.number);
        cache::RemoteRead& asked = *ended.read;
        BlockStatus status = ended.status;
        if (!ended.record.empty() && ended.record.size() == asked.into.size()) {
            std::memcpy(asked.into.data(), ended.record.data(), asked.into.size());
        } else if (!ended.record.empty()) {
            status = BlockStatus::remote_failed;
        }
        asked.done(asked, status, status == BlockStatus::remote_failed ? EIO : 0);
    };
    requests_->by_number[request.number] = std::move(made);
    device_.start_open_ended(request);
    around_.events.after(kTimeout_ns, [end = ending(request)] { end(BlockStatus::remote_failed, ""); });
    return request;
}

std::function<void(BlockStatus, std::string)> PeerReads::ending(const Request& request) {
    return
        [this, requests = std::weak_ptr(requests_), number = request.number](BlockStatus status, std::string record) {
            const auto known = requests.lock();
            if (known == nullptr) return;
            const auto found = known->by_number.find(number);
            if (found == known->by_number.end() || std::exchange(found->second->ended, true)) return;
            found->second->status = status;
            found->second->record = std::move(record);
            device_.finish(*found->second, 0);
            around_.nodes[static_cast<std::size_t>(own_)]->wake();
        };
}

// A node that lies about a block can make its own checksum of the wrong bytes. Only where the manifest has checksums
// can the reader notice.
std::string PeerReads::damaged(std::string record) const {
    if (record.size() <= protocol::kRecordHeaderBytes || !around_.random.chance(around_.network_faults.wrong_block))
        return record;
    const std::size_t at =
        protocol::kRecordHeaderBytes + around_.random.below(record.size() - protocol::kRecordHeaderBytes);
    record[at] = static_cast<char>(record[at] ^ 0x20);
    if (!checksums_ || around_.random.below(2) == 0) return record;
    const auto bytes = std::as_bytes(std::span(record));
    const auto header = protocol::read_record_header(bytes.first(protocol::kRecordHeaderBytes));
    if (!header) return record;
    const auto lie = protocol::make_record_header(header->dataset_id, header->block_id, header->payload_bytes,
                                                  crc32c(bytes.subspan(protocol::kRecordHeaderBytes)), header->segment);
    std::memcpy(record.data(), &lie, sizeof lie);
    return record;
}

void PeerReads::read(cache::RemoteRead& read) {
    const auto end = ending(start(read));
    const auto block = static_cast<std::uint32_t>(std::stoul(std::string(read.path)));
    // The objects of the lambdas below outlive this one.
    const Surroundings& around = around_;
    around.network.send(own_, peer_,
                        [around, own = own_, peer = peer_, dataset = dataset_, fingerprint = fingerprint_, block, end,
                         requests = std::weak_ptr(requests_), this] {
                            around.nodes[static_cast<std::size_t>(peer)]->lend(
                                dataset, fingerprint, block,
                                [around, own, peer, end, requests, this](const std::string& record) {
                                    around.network.send(peer, own, [record, end, requests, this] {
                                        if (requests.expired()) return;
                                        if (record.empty()) return end(BlockStatus::object_missing, "");
                                        end(BlockStatus::ok, damaged(record));
                                    });
                                });
                        });
}

void PeerReads::offer(cache::RemoteRead& read) {
    const auto end = ending(start(read));
    const auto block = static_cast<std::uint32_t>(std::stoul(std::string(read.path)));
    const std::string record(reinterpret_cast<const char*>(read.into.data()), read.into.size());
    const Surroundings& around = around_;
    around.network.send(own_, peer_,
                        [around, own = own_, peer = peer_, dataset = dataset_, fingerprint = fingerprint_, block, end,
                         sent = damaged(record)] {
                            SimulatedNode& node = *around.nodes[static_cast<std::size_t>(peer)];
                            if (!node.answers()) return;
                            const bool taken = node.take_offered(dataset, fingerprint, block, sent);
                            around.network.send(peer, own, [taken, end] {
                                end(taken ? BlockStatus::ok : BlockStatus::object_missing, "");
                            });
                        });
}

}  // namespace larder::campaign
