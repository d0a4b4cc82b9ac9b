#pragma once

// The ring's table of memory registered with the kernel. The kernel takes at most 1 GiB a piece, so a larger span is
// several; an operation that crosses from one piece to the next uses the plain form. Registration pins the memory
// (RLIMIT_MEMLOCK counts it, unless the process has CAP_IPC_LOCK).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

struct io_uring;

namespace larder::cache {

class RegisteredBuffers {
public:
    static constexpr std::size_t kPieceBytesMax = std::size_t{1} << 30;  // the kernel's limit

    // Reserves the kernel's (empty) table; without it every add is refused.
    explicit RegisteredBuffers(io_uring& ring, std::size_t piece_bytes_max = kPieceBytesMax);

    // All of `memory`, or nothing of it.
    bool add(std::span<std::byte> memory);
    void remove(std::span<std::byte> memory);

    // The table index that covers [data, data + bytes), or -1.
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
    std::vector<Piece> pieces_;  // by address
    std::vector<std::uint16_t> free_indices_;
};

}  // namespace larder::cache
