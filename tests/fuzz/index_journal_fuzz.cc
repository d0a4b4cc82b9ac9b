// Any bytes as the journal of an indexing: once unchanged, once with repaired checksums, so that the code behind the
// checks is reached. Whatever is accepted lies inside its object, in order, and is written again as it was read.

#include <cstdint>
#include <cstring>
#include <string>

#include "base/assert.h"
#include "base/hash.h"
#include "cache/dataset/index_journal_record.h"

namespace larder::cache {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text));
}

void check(const IndexedObject& object) {
    std::uint64_t next = 0;
    for (const DatasetContent::Block& block : object.blocks) {
        LARDER_ASSERT(block.length > 0 && block.sample_count > 0);
        LARDER_ASSERT(block.offset + block.length <= object.size_bytes && block.offset <= object.size_bytes);
        if (object.samples.empty()) continue;
        LARDER_ASSERT(block.first_sample == next);
        next += block.sample_count;
        LARDER_ASSERT(next <= object.samples.size());
        const std::uint64_t bytes = block.raw_bytes > 0 ? block.raw_bytes : block.length;
        for (std::uint64_t i = block.first_sample; i < next; ++i) {
            const protocol::ManifestSample& sample = object.samples[i];
            LARDER_ASSERT(std::uint64_t{sample.offset} + sample.length <= bytes);
        }
    }
    LARDER_ASSERT(next == object.samples.size());
}

void read(std::string_view file) {
    if (!is_journal_of(bytes_of(file), 0)) return;
    JournalScan scan(bytes_of(file));
    std::size_t before = scan.offset();
    for (auto record = scan.next(); !record.empty(); record = scan.next()) {
        LARDER_ASSERT(scan.offset() == before + record.size() && scan.offset() <= file.size());
        before = scan.offset();
        const JournalKey key = journal_key(record);
        const auto object = decode_journal_record(record);
        if (!object) continue;
        LARDER_ASSERT(object->path == key.path && object->size_bytes == key.size_bytes && object->tag == key.tag);
        check(*object);
        const std::string again = encode_journal_record(key, *object);
        LARDER_ASSERT(JournalScan(bytes_of(again), 0).next().size() == record.size());
        LARDER_ASSERT(decode_journal_record(bytes_of(again)));
    }
}

// Repairs the header and, as far as the lengths lead, each record's checksum.
void repair(std::string& file) {
    const JournalHeader header = make_journal_header(0);
    if (file.size() < sizeof header) file.resize(sizeof header);
    std::memcpy(file.data(), &header, sizeof header);
    for (std::size_t at = sizeof header; file.size() - at >= sizeof(JournalRecord);) {
        JournalRecord record;
        std::memcpy(&record, file.data() + at, sizeof record);
        if (record.record_bytes < sizeof record || record.record_bytes > file.size() - at) return;
        const auto rest =
            std::string_view(file).substr(at + sizeof record.crc, record.record_bytes - sizeof record.crc);
        record.crc = crc32c(bytes_of(rest));
        std::memcpy(file.data() + at, &record.crc, sizeof record.crc);
        at += record.record_bytes;
    }
}

}  // namespace
}  // namespace larder::cache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::string file(reinterpret_cast<const char*>(data), size);
    larder::cache::read(file);
    larder::cache::repair(file);
    larder::cache::read(file);
    return 0;
}
