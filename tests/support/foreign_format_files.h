#pragma once

// Files in formats that others define, written byte by byte as cache/protocol describes them.

#include <string>
#include <string_view>
#include <vector>

#include "cache/protocol/tfrecord.h"
#include "tests/support/memory_source.h"

namespace larder::test {

// Returns a shard or chunk with a table of samples; `between` goes between table and samples, like MDS's description.
inline std::string table_file(const std::vector<std::string>& samples, std::string_view between = "") {
    std::vector<std::uint32_t> offsets{static_cast<std::uint32_t>(4 * (samples.size() + 2) + between.size())};
    for (const std::string& sample : samples) {
        offsets.push_back(offsets.back() + static_cast<std::uint32_t>(sample.size()));
    }
    std::string file = number_bytes(static_cast<std::uint32_t>(samples.size())) + numbers_bytes(offsets);
    file += between;
    for (const std::string& sample : samples) file += sample;
    return file;
}

// Returns a sample with the sizes of all fields in front of them.
inline std::string sized_fields(const std::vector<std::string>& fields) {
    std::string sample;
    for (const std::string& field : fields) sample += number_bytes(static_cast<std::uint32_t>(field.size()));
    for (const std::string& field : fields) sample += field;
    return sample;
}

inline std::string tfrecord_file(const std::vector<std::string>& records) {
    const auto crc = [](const std::string& text) {
        return number_bytes(protocol::masked_crc(std::as_bytes(std::span(text))));
    };
    std::string file;
    for (const std::string& record : records) {
        const std::string length = number_bytes(std::uint64_t{record.size()});
        file += length + crc(length) + record + crc(record);
    }
    return file;
}

struct MegatronFiles {
    std::string bin;
    std::string idx;
};

// Returns files of documents made of sequences of int32 tokens.
inline MegatronFiles megatron_files(const std::vector<std::vector<std::vector<std::int32_t>>>& documents) {
    std::vector<std::int32_t> lengths;
    std::vector<std::int64_t> pointers;
    std::vector<std::int64_t> ends{0};
    MegatronFiles files;
    for (const auto& document : documents) {
        for (const auto& sequence : document) {
            lengths.push_back(static_cast<std::int32_t>(sequence.size()));
            pointers.push_back(static_cast<std::int64_t>(files.bin.size()));
            files.bin += numbers_bytes(sequence);
        }
        ends.push_back(static_cast<std::int64_t>(lengths.size()));
    }
    files.idx = std::string("MMIDIDX\0\0", 9) + number_bytes(std::uint64_t{1}) + '\x04' +
                number_bytes(std::uint64_t{lengths.size()}) + number_bytes(std::uint64_t{ends.size()}) +
                numbers_bytes(lengths) + numbers_bytes(pointers) + numbers_bytes(ends);
    return files;
}

}  // namespace larder::test
