#pragma once

// Walks a flatbuffer (https://flatbuffers.dev/internals/) without generated code. Positions count from its begin. Every
// offset is checked against the buffer, because whoever wrote the file chose the bytes: a position that does not lie in
// the buffer is nullopt, and so is a slot that the table leaves out.
//
// A view of the buffer, which must outlive it. Each call takes a constant time.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "cache/protocol/claims.h"
#include "cache/protocol/little_endian.h"

namespace larder::protocol {

class Flatbuffer {
public:
    explicit Flatbuffer(std::span<const std::byte> buffer) : buffer_(buffer) {}

    // The root table.
    std::optional<std::uint64_t> root() const { return follow(0); }

    // The position that the offset at `at` refers to.
    std::optional<std::uint64_t> follow(std::uint64_t at) const {
        const auto offset = number<std::uint32_t>(at);
        if (!offset || at + *offset >= buffer_.size()) return std::nullopt;
        return at + *offset;
    }

    // The position that a slot of the table at `table` refers to: a table, a vector or a text.
    std::optional<std::uint64_t> slot(std::uint64_t table, std::uint64_t index) const {
        const auto back = number<std::int32_t>(table);
        if (!back) return std::nullopt;
        const std::int64_t vtable = static_cast<std::int64_t>(table) - *back;
        if (vtable < 0) return std::nullopt;
        const auto at = static_cast<std::uint64_t>(vtable);
        const auto vtable_bytes = number<std::uint16_t>(at);
        const std::uint64_t entry = 4 + 2 * index;
        if (!vtable_bytes || entry + 2 > *vtable_bytes) return std::nullopt;
        const auto offset = number<std::uint16_t>(at + entry);
        if (!offset || *offset == 0) return std::nullopt;
        return follow(table + *offset);
    }

    // The items of the vector at `vector`, each of which takes `item_bytes` bytes.
    std::optional<std::span<const std::byte>> items(std::uint64_t vector, std::uint64_t item_bytes) const {
        const auto count = number<std::uint32_t>(vector);
        const std::uint64_t begin = vector + sizeof(std::uint32_t);
        if (!count || !lies_within(begin, *count, item_bytes, buffer_.size())) return std::nullopt;
        return buffer_.subspan(begin, *count * item_bytes);
    }

private:
    template <typename Number>
    std::optional<Number> number(std::uint64_t at) const {
        if (!lies_within(at, sizeof(Number), buffer_.size())) return std::nullopt;
        return load<Number>(buffer_, at);
    }

    std::span<const std::byte> buffer_;
};

}  // namespace larder::protocol
