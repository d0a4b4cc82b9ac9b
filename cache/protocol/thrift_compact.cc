#include "cache/protocol/thrift_compact.h"

#include "cache/protocol/claims.h"

namespace larder::protocol {
namespace {

// Parquet's own structs nest less than ten deep.
constexpr int kDepthMax = 32;
constexpr int kVarintBytesMax = 10;
constexpr unsigned kLongList = 15;

}  // namespace

void CompactReader::fail(const char* why) {
    if (why_ == nullptr) why_ = why;
}

std::string_view CompactReader::take(std::uint64_t bytes) {
    if (!failed() && !lies_within(position_, bytes, bytes_.size())) fail("it is cut off");
    if (failed()) return {};
    const std::string_view taken(reinterpret_cast<const char*>(bytes_.data() + position_), bytes);
    position_ += bytes;
    return taken;
}

std::uint8_t CompactReader::octet() {
    const std::string_view taken = take(1);
    return taken.empty() ? 0 : static_cast<std::uint8_t>(taken.front());
}

std::uint64_t CompactReader::varint() {
    std::uint64_t value = 0;
    for (int i = 0; i < kVarintBytesMax; ++i) {
        const std::uint8_t byte = octet();
        value |= std::uint64_t{byte & 0x7fu} << (7 * i);
        if ((byte & 0x80) == 0) return value;
    }
    fail("a number has too many bytes");
    return 0;
}

std::int64_t CompactReader::zigzag() {
    const std::uint64_t value = varint();
    return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

std::optional<CompactField> CompactReader::next(const CompactField& before) {
    const std::uint8_t head = octet();
    const auto type = static_cast<CompactType>(head & 0x0f);
    if (failed() || head == 0) return std::nullopt;
    const std::int64_t id = head >> 4 != 0 ? std::int64_t{before.id} + (head >> 4) : zigzag();
    if (type == CompactType::stop || type > CompactType::structure) fail("a field has an unknown type");
    // Writers write fields in the order of their ids. So no field comes twice.
    if (id <= before.id || id > INT16_MAX) fail("a field has a wrong id");
    if (failed()) return std::nullopt;
    return CompactField{.id = static_cast<std::int32_t>(id), .type = type};
}

bool CompactReader::expect(const CompactField& field, CompactType type) {
    if (field.type != type) fail("a field has another type than parquet.thrift says");
    return !failed();
}

std::int64_t CompactReader::integer(const CompactField& field) {
    if (field.type != CompactType::i32 && !expect(field, CompactType::i64)) return 0;
    return zigzag();
}

std::string_view CompactReader::binary(const CompactField& field) {
    return expect(field, CompactType::binary) ? take(varint()) : std::string_view{};
}

std::uint32_t CompactReader::list(const CompactField& field, CompactType item) {
    if (!expect(field, CompactType::list)) return 0;
    const std::uint8_t head = octet();
    const std::uint64_t count = head >> 4 == kLongList ? varint() : head >> 4;
    if (count > bytes_.size() - position_) fail("a list claims more items than there are bytes");
    if (count > 0 && static_cast<CompactType>(head & 0x0f) != item) {
        fail("a list has other items than parquet.thrift says");
    }
    return failed() ? 0 : static_cast<std::uint32_t>(count);
}

bool CompactReader::begin_struct(const CompactField& field) {
    return expect(field, CompactType::structure);
}

void CompactReader::skip_item(CompactType type, int depth) {
    // A bool has a byte of its own in a list or a map; as a field, its type is its value.
    if (type == CompactType::yes || type == CompactType::no) {
        octet();
    } else {
        skip(type, depth);
    }
}

void CompactReader::skip(CompactType type, int depth) {
    if (depth > kDepthMax) fail("it is nested too deeply");
    if (failed()) return;
    switch (type) {
        case CompactType::yes:
        case CompactType::no: return;
        case CompactType::byte: octet(); return;
        case CompactType::i16:
        case CompactType::i32:
        case CompactType::i64: varint(); return;
        case CompactType::number: take(8); return;
        case CompactType::binary: take(varint()); return;
        case CompactType::list:
        case CompactType::set: {
            const std::uint8_t head = octet();
            const std::uint64_t count = head >> 4 == kLongList ? varint() : head >> 4;
            if (count > bytes_.size() - position_) return fail("a list claims more items than there are bytes");
            for (std::uint64_t i = 0; i < count && !failed(); ++i) {
                skip_item(static_cast<CompactType>(head & 0x0f), depth + 1);
            }
            return;
        }
        case CompactType::map: {
            const std::uint64_t count = varint();
            if (count > bytes_.size() - position_) return fail("a map claims more items than there are bytes");
            const std::uint8_t types = count > 0 ? octet() : 0;
            for (std::uint64_t i = 0; i < count && !failed(); ++i) {
                skip_item(static_cast<CompactType>(types >> 4), depth + 1);
                skip_item(static_cast<CompactType>(types & 0x0f), depth + 1);
            }
            return;
        }
        case CompactType::structure: {
            CompactField field;
            while (const auto found = next(field)) {
                field = *found;
                skip(field.type, depth + 1);
            }
            return;
        }
        case CompactType::stop: break;
    }
    fail("a value has an unknown type");
}

void CompactWriter::varint(std::uint64_t value) {
    while (value >= 0x80) {
        out_ += static_cast<char>(value | 0x80);
        value >>= 7;
    }
    out_ += static_cast<char>(value);
}

void CompactWriter::field(std::int32_t before, std::int32_t id, CompactType type) {
    out_ += static_cast<char>((id - before) << 4 | static_cast<int>(type));
}

void CompactWriter::integer(std::int32_t before, std::int32_t id, CompactType type, std::int64_t value) {
    field(before, id, type);
    const auto bits = static_cast<std::uint64_t>(value);
    varint(bits << 1 ^ (value < 0 ? ~std::uint64_t{0} : 0));
}

void CompactWriter::list_head(CompactType item, std::size_t count) {
    if (count < kLongList) {
        out_ += static_cast<char>(count << 4 | static_cast<std::size_t>(item));
    } else {
        out_ += static_cast<char>(kLongList << 4 | static_cast<unsigned>(item));
        varint(count);
    }
}

}  // namespace larder::protocol
