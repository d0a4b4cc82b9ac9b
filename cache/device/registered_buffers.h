#pragma once

// The ring's table of memory registered with the kernel. The kernel takes at most 1 GiB a piece, so a larger span is
// split into several pieces. An operation that crosses two pieces cannot use the registered form. Registration pins the
// memory and counts against RLIMIT_MEMLOCK, unless the process has CAP_IPC_LOCK.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

struct io_uring;

namespace larder::cache {

class RegisteredBuffers {
public:
    static constexpr std::size_t kPieceBytesMax = std::size_t{1} << 30;  // the kernel's limit

    // Reserves an empty table in the kernel. If that fails, every `add` returns false.
    explicit RegisteredBuffers(io_uring& ring, std::size_t piece_bytes_max = kPieceBytesMax);

    // Registers all of `memory`, or nothing and returns false.
    bool add(std::span<std::byte> memory);
    void remove(std::span<std::byte> memory);

    // Returns the index of the piece that covers [data, data + bytes), or -1.
    int find(const std::byte* data, std::size_t bytes) const;

private:
    struct Piece {
        std::uintptr_t begin;
        std::uintptr_t end;
        std::uint16_t index;
    };
    bool update(std::uint16_t index, std::byte* data, std::size_t bytes);

    io_uring& ring_;
    const std::size_t piece_bytes_max_;
    std::vector<Piece> pieces_;  // sorted by address
    std::vector<std::uint16_t> free_indices_;
};

}  // namespace larder::cache
