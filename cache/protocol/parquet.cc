#include "cache/protocol/parquet.h"

#include <algorithm>
#include <unordered_set>

#include "base/utf8.h"
#include "cache/protocol/arrow_schema.h"
#include "cache/protocol/claims.h"
#include "cache/protocol/little_endian.h"
#include "cache/protocol/thrift_compact.h"

namespace larder::protocol {
namespace {

constexpr std::string_view kEncryptedMagic = "PARE";
constexpr std::string_view kArrowSchemaKey = "ARROW:schema";
constexpr std::size_t kWriterNameBytesMax = 1024;
constexpr std::size_t kSchemaDepthMax = 64;
// An element may be one byte of the footer, and costs far more once it is parsed.
constexpr std::uint32_t kSchemaElementsMax = 1u << 16;
constexpr std::int64_t kRepeated = 2;  // of FieldRepetitionType

using Bytes = std::span<const std::byte>;

std::string_view text_of(Bytes bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::unexpected<Error> unsupported(const std::string& what) {
    return fail(ErrorCode::unsupported, what);
}

// The leaves of the schema, in the order of the chunks of a row group.
struct Leaf {
    std::uint32_t column = 0;  // at the top of the schema
    std::uint32_t type = 0;
    bool is_repeated = false;  // itself, or an element that it is in
};

struct Schema {
    std::vector<std::string> columns;  // at the top
    std::vector<Leaf> leaves;
};

struct SchemaElement {
    std::string_view name;
    std::int64_t type = 0;
    std::int64_t repetition = 0;
    std::int64_t child_count = 0;
};

class FooterParser {
public:
    FooterParser(Bytes footer, std::uint64_t footer_offset) : reader_(footer), data_end_(footer_offset) {}

    Result<ParquetFooter> parse(std::span<const std::string> columns) {
        CompactField field;
        while (const auto found = reader_.next(field)) {
            field = *found;
            if (auto read = read_field(field, columns); !read) return std::unexpected(read.error());
        }
        if (reader_.failed()) return damaged(reader_.why());
        if (schema_.leaves.empty()) return damaged("it has no schema");
        write_head();
        return std::move(footer_);
    }

private:
    std::unexpected<Error> damaged(const std::string& why) const {
        return fail(ErrorCode::corrupt, "the footer: at byte " + std::to_string(reader_.position()) + ": " + why);
    }

    Result<void> read_field(const CompactField& field, std::span<const std::string> columns) {
        switch (field.id) {
            case 1: version_ = reader_.integer(field); return {};
            case 2: {
                const std::size_t begin = reader_.position();
                if (auto read = read_schema(field); !read) return read;
                footer_.schema = text_of(reader_.since(begin));
                return choose(columns);
            }
            case 4: return read_row_groups(field);
            case 5: read_key_values(field); return {};
            case 6: writer_ = reader_.binary(field); return {};
            case 8: return unsupported("it is encrypted");
            default: reader_.skip(field); return {};
        }
    }

    // --- schema

    SchemaElement read_element() {
        SchemaElement element;
        CompactField field;
        while (const auto found = reader_.next(field)) {
            field = *found;
            switch (field.id) {
                case 1: element.type = reader_.integer(field); break;
                case 3: element.repetition = reader_.integer(field); break;
                case 4: element.name = reader_.binary(field); break;
                case 5: element.child_count = reader_.integer(field); break;
                default: reader_.skip(field);
            }
        }
        return element;
    }

    Result<void> read_schema(const CompactField& field) {
        const std::uint32_t count = reader_.list(field, CompactType::structure);
        if (count > kSchemaElementsMax) {
            return unsupported("its schema has " + std::to_string(count) + " elements; at most " +
                               std::to_string(kSchemaElementsMax) + " are read");
        }
        // The elements on the path to the present one; the root is the first.
        struct Open {
            std::int64_t children_left = 0;
            bool is_repeated = false;
        };
        std::vector<Open> open;
        for (std::uint32_t i = 0; i < count && !reader_.failed(); ++i) {
            if (i > 0 && open.empty()) return damaged("the schema has more than one root");
            const SchemaElement element = read_element();
            if (reader_.failed()) break;
            // Names are in the daemon's answers, which are JSON.
            if (!is_utf8(element.name)) return unsupported("the name of a column is not UTF-8");
            if (open.size() == 1) schema_.columns.emplace_back(element.name);
            if (!open.empty()) --open.back().children_left;
            if (element.child_count < 0 || element.child_count > count) {
                return damaged("an element of the schema has a wrong number of children");
            }
            // Some writers call the root repeated, which means nothing.
            const bool is_repeated = i > 0 && (open.back().is_repeated || element.repetition == kRepeated);
            if (element.child_count == 0 && i > 0) {
                schema_.leaves.push_back({.column = static_cast<std::uint32_t>(schema_.columns.size() - 1),
                                          .type = static_cast<std::uint32_t>(element.type),
                                          .is_repeated = is_repeated});
            } else {
                open.push_back({.children_left = element.child_count, .is_repeated = is_repeated});
            }
            if (open.size() > kSchemaDepthMax) return unsupported("its schema is nested too deeply");
            while (!open.empty() && open.back().children_left == 0) open.pop_back();
        }
        if (reader_.failed()) return damaged(reader_.why());
        if (!open.empty()) return damaged("the schema lacks elements");
        return {};
    }

    Result<void> choose(std::span<const std::string> columns) {
        is_chosen_.assign(schema_.columns.size(), columns.empty());
        for (const std::string& column : columns) {
            bool is_known = false;
            for (std::size_t i = 0; i < schema_.columns.size(); ++i) {
                if (schema_.columns[i] != column) continue;
                is_chosen_[i] = true;
                is_known = true;
            }
            if (!is_known) return fail(ErrorCode::invalid_argument, no_column(column));
        }
        std::unordered_set<std::string_view> names;
        for (std::size_t i = 0; i < schema_.columns.size(); ++i) {
            if (!is_chosen_[i]) continue;
            const std::string& name = schema_.columns[i];
            if (!names.insert(name).second) {
                return unsupported("it has more than one column \"" + std::string(utf8_prefix(name, 64)) +
                                   "\": choose columns without it, or write the file anew");
            }
            footer_.columns.push_back(name);
        }
        return {};
    }

    std::string no_column(const std::string& column) const {
        constexpr std::size_t kNamesMax = 20;
        std::string why = "it has no column \"" + column + "\"; its columns are ";
        for (std::size_t i = 0; i < std::min(kNamesMax, schema_.columns.size()); ++i) {
            why += (i == 0 ? "" : ", ") + std::string(utf8_prefix(schema_.columns[i], 64));
        }
        if (schema_.columns.size() > kNamesMax) {
            why += " and " + std::to_string(schema_.columns.size() - kNamesMax) + " more";
        }
        return why;
    }

    // --- row groups

    Result<void> read_row_groups(const CompactField& field) {
        if (schema_.leaves.empty()) return damaged("its row groups come before its schema");
        const std::uint32_t count = reader_.list(field, CompactType::structure);
        std::uint64_t end = kParquetMagic.size();
        for (std::uint32_t i = 0; i < count && !reader_.failed(); ++i) {
            auto group = read_row_group();
            if (!group) return std::unexpected(group.error().within("row group " + std::to_string(i)));
            if (group->row_count == 0) continue;
            if (group->begin < end) {
                return unsupported("row group " + std::to_string(i) + " begins before the one before it ends");
            }
            end = group->end;
            footer_.row_groups.push_back(std::move(*group));
        }
        return {};
    }

    Result<ParquetRowGroup> read_row_group() {
        ParquetRowGroup group;
        CompactField field;
        bool has_chunks = false;
        while (const auto found = reader_.next(field)) {
            field = *found;
            if (field.id == 1) {
                has_chunks = true;
                if (auto read = read_chunks(field, group); !read) return std::unexpected(read.error());
            } else if (field.id == 3) {
                const std::int64_t rows = reader_.integer(field);
                if (rows < 0 || rows > INT32_MAX) return unsupported(std::to_string(rows) + " rows are out of range");
                group.row_count = static_cast<std::uint64_t>(rows);
            } else {
                reader_.skip(field);
            }
        }
        if (reader_.failed()) return damaged(reader_.why());
        if (!has_chunks) return damaged("it has no columns");
        if (auto counted = check_value_counts(group); !counted) return std::unexpected(counted.error());
        if (group.row_count > 0) {
            if (auto placed = place(group); !placed) return std::unexpected(placed.error());
        }
        return group;
    }

    // A value, or a null, for each row; a repeated leaf has one for each item, and one for an empty list. Fewer rows
    // than values would be lost without an error.
    Result<void> check_value_counts(const ParquetRowGroup& group) const {
        for (std::size_t i = 0; i < group.chunks.size(); ++i) {
            const std::uint64_t values = group.chunks[i].value_count;
            const bool may_have_more = schema_.leaves[i].is_repeated && group.row_count > 0;
            if (values == group.row_count || (may_have_more && values > group.row_count)) continue;
            return damaged("a column has " + std::to_string(values) + " values for " + std::to_string(group.row_count) +
                           " rows");
        }
        return {};
    }

    Result<void> read_chunks(const CompactField& field, ParquetRowGroup& group) {
        const std::uint32_t count = reader_.list(field, CompactType::structure);
        if (reader_.failed()) return damaged(reader_.why());
        if (count != schema_.leaves.size()) {
            return damaged("it has " + std::to_string(count) + " columns, the schema " +
                           std::to_string(schema_.leaves.size()));
        }
        group.chunks.reserve(count);
        for (const Leaf& leaf : schema_.leaves) {
            auto chunk = read_chunk();
            if (!chunk) return std::unexpected(chunk.error());
            if (chunk->type != leaf.type) return damaged("a column has another type than in the schema");
            chunk->is_chosen = is_chosen_[leaf.column];
            group.chunks.push_back(*chunk);
        }
        return {};
    }

    Result<ParquetChunk> read_chunk() {
        std::optional<ParquetChunk> chunk;
        CompactField field;
        while (const auto found = reader_.next(field)) {
            field = *found;
            if (field.id == 1) {
                if (!reader_.binary(field).empty()) return unsupported("a column's bytes are in another file");
            } else if (field.id == 3) {
                if (!reader_.begin_struct(field)) break;
                auto read = read_chunk_metadata();
                if (!read) return read;
                chunk = *read;
            } else if (field.id == 8 || field.id == 9) {
                return unsupported("a column is encrypted");
            } else {
                reader_.skip(field);
            }
        }
        if (reader_.failed()) return damaged(reader_.why());
        if (!chunk) return damaged("a column has no metadata");
        return *chunk;
    }

    Result<ParquetChunk> read_chunk_metadata() {
        ParquetChunk chunk;
        std::uint64_t dictionary_offset = 0;
        CompactField field;
        const auto number = [&] {
            const std::int64_t value = reader_.integer(field);
            if (value < 0) reader_.fail("a number is negative");
            return reader_.failed() ? 0 : static_cast<std::uint64_t>(value);
        };
        while (const auto found = reader_.next(field)) {
            field = *found;
            switch (field.id) {
                case 1: chunk.type = static_cast<std::uint32_t>(number()); break;
                case 4: chunk.codec = static_cast<std::uint32_t>(number()); break;
                case 5: chunk.value_count = number(); break;
                case 6: chunk.raw_bytes = number(); break;
                case 7: chunk.bytes = number(); break;
                case 9: chunk.offset = number(); break;
                case 11: dictionary_offset = number(); break;
                default: reader_.skip(field);
            }
        }
        if (reader_.failed()) return damaged(reader_.why());
        // Some writers set the dictionary's offset to 0 if there is none.
        if (dictionary_offset > 0 && dictionary_offset < chunk.offset) chunk.offset = dictionary_offset;
        return chunk;
    }

    Result<void> place(ParquetRowGroup& group) {
        group.begin = data_end_;
        for (const ParquetChunk& chunk : group.chunks) {
            if (!chunk.is_chosen) continue;
            if (chunk.bytes == 0 || chunk.offset < kParquetMagic.size() ||
                !lies_within(chunk.offset, chunk.bytes, data_end_)) {
                return damaged("a column's " + std::to_string(chunk.bytes) + " bytes at offset " +
                               std::to_string(chunk.offset) + " do not lie before the footer");
            }
            group.begin = std::min(group.begin, chunk.offset);
            group.end = std::max(group.end, chunk.offset + chunk.bytes);
        }
        return {};
    }

    // --- the head

    // Keeps Arrow's copy of the schema only: it has what Parquet's own lacks, such as time zones and dictionaries.
    void read_key_values(const CompactField& list) {
        const std::uint32_t count = reader_.list(list, CompactType::structure);
        for (std::uint32_t i = 0; i < count && !reader_.failed(); ++i) {
            const std::size_t begin = reader_.position();
            std::string_view key;
            std::string_view value;
            CompactField field;
            while (const auto found = reader_.next(field)) {
                field = *found;
                if (field.id == 1) {
                    key = reader_.binary(field);
                } else if (field.id == 2) {
                    value = reader_.binary(field);
                } else {
                    reader_.skip(field);
                }
            }
            if (key != kArrowSchemaKey) continue;
            arrow_schema_ = text_of(reader_.since(begin));
            footer_.arrow_fields = arrow_schema_fields(value);
        }
    }

    // [length of the fields before the row groups u32] [those fields] [the fields after the row groups]
    void write_head() {
        std::string& head = footer_.head;
        head.resize(sizeof(std::uint32_t));
        CompactWriter out(head);
        out.integer(0, 1, CompactType::i32, version_);
        out.field(1, 2, CompactType::list);
        head += footer_.schema;
        const auto before_bytes = static_cast<std::uint32_t>(head.size() - sizeof(std::uint32_t));
        std::memcpy(head.data(), &before_bytes, sizeof before_bytes);
        std::int32_t last = 4;
        if (!arrow_schema_.empty()) {
            out.field(last, 5, CompactType::list);
            out.list_head(CompactType::structure, 1);
            head += arrow_schema_;
            last = 5;
        }
        // Arrow knows the faults of old writers by their names.
        if (!writer_.empty() && writer_.size() <= kWriterNameBytesMax) {
            out.field(last, 6, CompactType::binary);
            out.varint(writer_.size());
            head += writer_;
        }
        out.end_struct();
    }

    CompactReader reader_;
    std::uint64_t data_end_;
    Schema schema_;
    std::vector<bool> is_chosen_;  // of Schema::columns
    std::int64_t version_ = 1;
    std::string_view arrow_schema_;
    std::string_view writer_;
    ParquetFooter footer_;
};

// Arrow takes the number of rows from the first column, chosen or not.
void write_chunk(std::string& text, const ParquetChunk& chunk, std::uint64_t block_offset) {
    CompactWriter out(text);
    const auto put = [&out](std::int32_t before, std::int32_t id, std::uint64_t value) {
        out.integer(before, id, CompactType::i64, static_cast<std::int64_t>(value));
    };
    put(0, 2, 0);
    out.field(2, 3, CompactType::structure);
    out.integer(0, 1, CompactType::i32, chunk.type);
    out.field(1, 2, CompactType::list);
    out.list_head(CompactType::i32, 0);
    out.field(2, 3, CompactType::list);
    out.list_head(CompactType::binary, 0);
    out.integer(3, 4, CompactType::i32, chunk.is_chosen ? chunk.codec : 0);
    put(4, 5, chunk.value_count);
    put(5, 6, chunk.is_chosen ? chunk.raw_bytes : 0);
    put(6, 7, chunk.is_chosen ? chunk.bytes : 0);
    // No offset of a dictionary: a block may begin with one, and Arrow takes an offset of 0 for none. Its reader finds
    // the dictionary as the first page.
    put(7, 9, chunk.is_chosen ? chunk.offset - block_offset : 0);
    out.end_struct();
    out.end_struct();
}

}  // namespace

Result<std::uint32_t> parquet_footer_bytes(std::span<const std::byte> tail, std::uint64_t file_bytes) {
    const std::string_view magic = text_of(tail.subspan(sizeof(std::uint32_t)));
    if (magic == kEncryptedMagic) return unsupported("its footer is encrypted");
    if (magic != kParquetMagic) return fail(ErrorCode::corrupt, "it does not end with PAR1: it is no Parquet file");
    const auto bytes = load<std::uint32_t>(tail);
    if (!lies_within(kParquetMagic.size() + kParquetTailBytes, bytes, file_bytes)) {
        return fail(ErrorCode::corrupt, "its footer should have " + std::to_string(bytes) +
                                            " bytes, more than the file has: the file is damaged");
    }
    if (bytes > kParquetFooterBytesMax) {
        return unsupported("its footer has " + std::to_string(bytes) + " bytes; at most " +
                           std::to_string(kParquetFooterBytesMax) + " are read");
    }
    return bytes;
}

Result<ParquetFooter> parse_parquet_footer(std::span<const std::byte> footer, std::uint64_t footer_offset,
                                           std::span<const std::string> columns) {
    return FooterParser(footer, footer_offset).parse(columns);
}

std::string encode_row_groups(std::span<const ParquetRowGroup> row_groups, std::uint64_t block_offset) {
    std::string text;
    CompactWriter out(text);
    out.list_head(CompactType::structure, row_groups.size());
    for (const ParquetRowGroup& group : row_groups) {
        out.field(0, 1, CompactType::list);
        out.list_head(CompactType::structure, group.chunks.size());
        for (const ParquetChunk& chunk : group.chunks) write_chunk(text, chunk, block_offset);
        out.integer(1, 2, CompactType::i64, 0);
        out.integer(2, 3, CompactType::i64, static_cast<std::int64_t>(group.row_count));
        out.end_struct();
    }
    return text;
}

Result<std::string> parquet_footer_file(std::span<const std::byte> head, std::span<const std::byte> row_groups,
                                        std::uint64_t row_count) {
    constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);
    const std::uint32_t before_bytes = head.size() < kLengthBytes ? 0 : load<std::uint32_t>(head);
    if (head.size() < kLengthBytes || before_bytes > head.size() - kLengthBytes) {
        return fail(ErrorCode::corrupt, "the schema of the dataset is cut off; index the dataset again");
    }
    std::string file(kParquetMagic);
    CompactWriter out(file);
    file += text_of(head.subspan(kLengthBytes, before_bytes));
    out.integer(2, 3, CompactType::i64, static_cast<std::int64_t>(row_count));
    out.field(3, 4, CompactType::list);
    file += text_of(row_groups);
    file += text_of(head.subspan(kLengthBytes + before_bytes));
    const auto footer_bytes = static_cast<std::uint32_t>(file.size() - kParquetMagic.size());
    file.append(reinterpret_cast<const char*>(&footer_bytes), sizeof footer_bytes);
    return file.append(kParquetMagic);
}

}  // namespace larder::protocol
