#pragma once

// Arrow files, and chunks of LitData that end in one, for tests of what no writer would write. Their batches and
// schemas are bytes that Arrow would not decode. Real files are in tests/data/formats/litdata_rows.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/memory_source.h"

namespace larder::test {

struct ArrowBatchText {
    std::int64_t offset = 0;  // in the Arrow file
    std::int32_t head_bytes = 0;
    std::int64_t body_bytes = 0;
};

// A flatbuffer: the position of the table, the table's vtable, the table, and its two vectors.
inline std::string arrow_footer(const std::vector<ArrowBatchText>& batches,
                                const std::vector<ArrowBatchText>& dictionaries = {}) {
    const auto vector_of = [](const std::vector<ArrowBatchText>& places) {
        std::string text = number_bytes(static_cast<std::uint32_t>(places.size()));
        for (const ArrowBatchText& place : places) {
            text += number_bytes(place.offset) + number_bytes(place.head_bytes) + std::string(4, '\0') +
                    number_bytes(place.body_bytes);
        }
        return text;
    };
    const std::string batches_vector = vector_of(batches);
    const std::uint32_t table = 20;
    const std::uint32_t vectors = 36;
    return number_bytes(table) + numbers_bytes<std::uint16_t>({12, 12, 0, 0, 8, 4, 0, 0}) +
           numbers_bytes<std::uint32_t>(
               {table - 4, vectors - 24, static_cast<std::uint32_t>(vectors + batches_vector.size()) - 28, 0}) +
           batches_vector + vector_of(dictionaries);
}

// A file with a schema of 8 bytes, batches of these sizes one after the other, and a footer.
inline std::string arrow_file(const std::vector<std::int64_t>& batch_bytes) {
    std::string file("ARROW1\0\0\xff\xff\xff\xff\x08\0\0\0a schema", 24);
    std::vector<ArrowBatchText> batches;
    for (const std::int64_t bytes : batch_bytes) {
        batches.push_back({.offset = static_cast<std::int64_t>(file.size()), .head_bytes = 8, .body_bytes = bytes - 8});
        file.append(static_cast<std::size_t>(bytes), static_cast<char>('a' + batches.size()));
    }
    const std::string footer = arrow_footer(batches);
    return file + footer + number_bytes(static_cast<std::int32_t>(footer.size())) + "ARROW1";
}

inline std::string row_chunk(std::uint32_t samples, const std::string& arrow) {
    return number_bytes(samples) + numbers_bytes(std::vector<std::uint32_t>(samples + 1, 4 * (samples + 2))) + arrow +
           number_bytes(static_cast<std::uint32_t>(arrow.size())) + std::string("LDARW01\0", 8);
}

}  // namespace larder::test
