#pragma once

// Thrift's compact protocol (doc/specs/thrift-compact-protocol.md in apache/thrift), as far as Parquet's footer needs
// it. A CompactReader walks bytes in place and allocates nothing: a list is a count, checked against the bytes that are
// left, since each item takes at least one. A CompactWriter appends to a string. Both belong to one thread.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace larder::protocol {

enum class CompactType : std::uint8_t {
    stop = 0,
    yes = 1,
    no = 2,
    byte = 3,
    i16 = 4,
    i32 = 5,
    i64 = 6,
    number = 7,  // a double
    binary = 8,
    list = 9,
    set = 10,
    map = 11,
    structure = 12
};

struct CompactField {
    std::int32_t id = 0;
    CompactType type = CompactType::stop;
};

// After the first error `failed` stays true, and reads return nothing: zeros, empty strings, the end of a struct.
class CompactReader {
public:
    explicit CompactReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

    bool failed() const { return why_ != nullptr; }
    const char* why() const { return why_; }
    std::size_t position() const { return position_; }
    std::span<const std::byte> since(std::size_t begin) const { return bytes_.subspan(begin, position_ - begin); }

    // The next field of a struct; `before` is the one before it, or {}. nullopt at the struct's end.
    std::optional<CompactField> next(const CompactField& before);
    std::int64_t integer(const CompactField& field);
    std::string_view binary(const CompactField& field);
    // The number of items of a list of structs, or of binaries.
    std::uint32_t list(const CompactField& field, CompactType item);
    bool begin_struct(const CompactField& field);
    void skip(const CompactField& field) { skip(field.type, 0); }
    void fail(const char* why);

private:
    std::uint8_t octet();
    std::uint64_t varint();
    std::int64_t zigzag();
    std::string_view take(std::uint64_t bytes);
    bool expect(const CompactField& field, CompactType type);
    void skip(CompactType type, int depth);
    void skip_item(CompactType type, int depth);

    std::span<const std::byte> bytes_;
    std::size_t position_ = 0;
    const char* why_ = nullptr;
};

class CompactWriter {
public:
    explicit CompactWriter(std::string& out) : out_(out) {}
    // The fields of a struct in the order of their ids. `before`: the id of the field before, 0 for none.
    void field(std::int32_t before, std::int32_t id, CompactType type);
    void integer(std::int32_t before, std::int32_t id, CompactType type, std::int64_t value);
    void list_head(CompactType item, std::size_t count);
    void varint(std::uint64_t value);
    void end_struct() { out_ += '\0'; }

private:
    std::string& out_;
};

}  // namespace larder::protocol
