#pragma once

// Footers of Parquet files, for tests of what no writer would write. Real files are in tests/python/test_parquet.py.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cache/protocol/parquet.h"
#include "cache/protocol/thrift_compact.h"

namespace larder::test {

// A column of 64-bit numbers.
struct ColumnText {
    std::string name;
    std::uint64_t dictionary_offset = 0;  // 0: none
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::int64_t value_count = -1;  // -1: one for each row
};

struct RowGroupText {
    std::int64_t row_count = 0;
    std::vector<ColumnText> columns;
};

inline void put_text(std::string& out, std::int32_t before, std::int32_t id, std::string_view text) {
    protocol::CompactWriter writer(out);
    writer.field(before, id, protocol::CompactType::binary);
    writer.varint(text.size());
    out += text;
}

inline void put_column(std::string& out, const ColumnText& column, std::int64_t row_count) {
    using protocol::CompactType;
    protocol::CompactWriter writer(out);
    const auto number = [&](std::int32_t before, std::int32_t id, std::uint64_t value) {
        writer.integer(before, id, CompactType::i64, static_cast<std::int64_t>(value));
    };
    number(0, 2, 0);
    writer.field(2, 3, CompactType::structure);
    writer.integer(0, 1, CompactType::i32, 2);
    writer.field(1, 2, CompactType::list);
    writer.list_head(CompactType::i32, 1);
    writer.varint(0);
    writer.field(2, 3, CompactType::list);
    writer.list_head(CompactType::binary, 1);
    writer.varint(column.name.size());
    out += column.name;
    writer.integer(3, 4, CompactType::i32, 1);
    const std::int64_t values = column.value_count < 0 ? row_count : column.value_count;
    number(4, 5, values < 0 ? 0 : static_cast<std::uint64_t>(values));
    number(5, 6, 2 * column.bytes);
    number(6, 7, column.bytes);
    number(7, 9, column.offset);
    if (column.dictionary_offset > 0) number(9, 11, column.dictionary_offset);
    writer.end_struct();
    writer.end_struct();
}

// `extra`: fields after the row groups, of which the first must be encoded for field 4 before it. `repetition`: of all
// columns, as in parquet.thrift; 2 is repeated.
inline std::string parquet_footer(const std::vector<std::string>& names, const std::vector<RowGroupText>& groups,
                                  std::string_view extra = {}, std::int64_t repetition = 0) {
    using protocol::CompactType;
    std::string out;
    protocol::CompactWriter writer(out);
    writer.integer(0, 1, CompactType::i32, 2);
    writer.field(1, 2, CompactType::list);
    writer.list_head(CompactType::structure, names.size() + 1);
    put_text(out, 0, 4, "schema");
    writer.integer(4, 5, CompactType::i32, static_cast<std::int64_t>(names.size()));
    writer.end_struct();
    for (const std::string& name : names) {
        writer.integer(0, 1, CompactType::i32, 2);
        writer.integer(1, 3, CompactType::i32, repetition);
        put_text(out, 3, 4, name);
        writer.end_struct();
    }
    std::int64_t rows = 0;
    for (const RowGroupText& group : groups) rows += group.row_count;
    writer.integer(2, 3, CompactType::i64, rows);
    writer.field(3, 4, CompactType::list);
    writer.list_head(CompactType::structure, groups.size());
    for (const RowGroupText& group : groups) {
        writer.field(0, 1, CompactType::list);
        writer.list_head(CompactType::structure, group.columns.size());
        for (const ColumnText& column : group.columns) put_column(out, column, group.row_count);
        writer.integer(1, 2, CompactType::i64, 0);
        writer.integer(2, 3, CompactType::i64, group.row_count);
        writer.end_struct();
    }
    out += extra;
    writer.end_struct();
    return out;
}

// A file of `data_bytes` bytes before the footer. Its chunks have no pages that could be decoded.
inline std::string parquet_file(std::size_t data_bytes, std::string_view footer) {
    std::string file(protocol::kParquetMagic);
    for (std::size_t i = file.size(); i < data_bytes; ++i) file += static_cast<char>('a' + i % 26);
    file += footer;
    const auto footer_bytes = static_cast<std::uint32_t>(footer.size());
    file.append(reinterpret_cast<const char*>(&footer_bytes), sizeof footer_bytes);
    return file.append(protocol::kParquetMagic);
}

}  // namespace larder::test
