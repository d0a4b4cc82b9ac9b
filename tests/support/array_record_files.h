#pragma once

// ArrayRecord files for tests of what no writer would write. Their hashes are 0. Real files are in
// tests/data/formats/array_record.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/memory_source.h"

namespace larder::test {

inline std::string varint(std::uint64_t value) {
    std::string text;
    for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
    return text + static_cast<char>(value);
}

// The data of an uncompressed simple chunk.
inline std::string simple_chunk_data(const std::vector<std::string>& records) {
    std::string sizes;
    std::string values;
    for (const std::string& record : records) {
        sizes += varint(record.size());
        values += record;
    }
    return std::string(1, '\0') + varint(sizes.size()) + sizes + values;
}

// A file of Riegeli that is being written: each 65536 bytes begin with a block header.
class RiegeliFile {
public:
    // Returns where the chunk begins. `records` and `decoded_bytes` may lie.
    std::uint64_t add(char type, std::uint64_t records, std::uint64_t decoded_bytes, const std::string& data) {
        const std::uint64_t begin = bytes_.size();
        put(number_bytes(std::uint64_t{0}) + number_bytes(std::uint64_t{data.size()}) + number_bytes(std::uint64_t{0}) +
            number_bytes(static_cast<std::uint64_t>(static_cast<unsigned char>(type)) | records << 8) +
            number_bytes(decoded_bytes));
        put(data);
        while (bytes_.size() < begin + records) put(std::string(1, '\0'));
        return begin;
    }
    std::uint64_t add_records(const std::vector<std::string>& records) {
        std::uint64_t decoded_bytes = 0;
        for (const std::string& record : records) decoded_bytes += record.size();
        return add('r', records.size(), decoded_bytes, simple_chunk_data(records));
    }
    void fill_stride() {
        while (bytes_.size() % 65536 != 0) bytes_ += '\0';
    }
    std::uint64_t size() const { return bytes_.size(); }
    const std::string& bytes() const { return bytes_; }

private:
    void put(const std::string& text) {
        for (const char byte : text) {
            if (bytes_.size() % 65536 == 0) bytes_.append(24, 'H');
            bytes_ += byte;
        }
    }

    std::string bytes_;
};

inline std::string array_record_postscript(std::uint64_t footer) {
    return '\x08' + varint(footer) + '\x10' + varint(0x71930e704fdae05e);
}

struct GroupText {
    std::uint64_t begin = 0;
    std::uint64_t decoded_bytes = 0;
    std::uint64_t records = 0;
};

// Adds the index of `groups` and the end of the file.
inline std::string array_record_file(RiegeliFile file, const std::vector<GroupText>& groups) {
    std::vector<std::string> index{"metadata"};
    for (const GroupText& group : groups) {
        index.push_back('\x08' + varint(group.begin) + '\x10' + varint(group.decoded_bytes) + '\x18' +
                        varint(group.records));
    }
    const std::uint64_t footer = file.add_records(index);
    file.fill_stride();
    file.add_records({array_record_postscript(footer)});
    file.fill_stride();
    return file.bytes();
}

// A file with these groups of records.
inline std::string array_record_file(const std::vector<std::vector<std::string>>& groups) {
    RiegeliFile file;
    file.add('s', 0, 0, "");
    std::vector<GroupText> index;
    for (const auto& records : groups) {
        GroupText group{.begin = file.add_records(records), .decoded_bytes = 0, .records = records.size()};
        for (const std::string& record : records) group.decoded_bytes += record.size();
        index.push_back(group);
    }
    return array_record_file(std::move(file), index);
}

}  // namespace larder::test
