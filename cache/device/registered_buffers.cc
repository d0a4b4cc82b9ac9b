#include "cache/device/registered_buffers.h"

#include <liburing.h>
#include <sys/uio.h>

#include <algorithm>

#include "base/assert.h"

namespace larder::cache {

namespace {

constexpr unsigned kTableEntries = 1u << 14;  // the kernel's limit

}  // namespace

RegisteredBuffers::RegisteredBuffers(io_uring& ring, std::size_t piece_bytes_max)
    : ring_(ring), piece_bytes_max_(piece_bytes_max) {
    if (io_uring_register_buffers_sparse(&ring_, kTableEntries) != 0) return;
    free_indices_.reserve(kTableEntries);
    for (unsigned index = kTableEntries; index-- > 0;) free_indices_.push_back(static_cast<std::uint16_t>(index));
}

bool RegisteredBuffers::update(std::uint16_t index, std::byte* data, std::size_t bytes) {
    const iovec piece{data, bytes};
    const __u64 tag = 0;
    return io_uring_register_buffers_update_tag(&ring_, index, &piece, &tag, 1) == 1;
}

bool RegisteredBuffers::add(std::span<std::byte> memory) {
    std::size_t added = 0;
    while (added < memory.size() && !free_indices_.empty()) {
        const std::size_t bytes = std::min(memory.size() - added, piece_bytes_max_);
        const std::uint16_t index = free_indices_.back();
        if (!update(index, memory.data() + added, bytes)) break;
        free_indices_.pop_back();
        const auto begin = reinterpret_cast<std::uintptr_t>(memory.data() + added);
        const auto place = std::ranges::lower_bound(pieces_, begin, {}, &Piece::begin);
        pieces_.insert(place, Piece{begin, begin + bytes, index});
        added += bytes;
    }
    if (added == memory.size()) return true;
    remove(memory.first(added));
    return false;
}

void RegisteredBuffers::remove(std::span<std::byte> memory) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    const auto end = begin + memory.size();
    std::erase_if(pieces_, [&](const Piece& piece) {
        if (piece.begin < begin || piece.end > end) return false;
        LARDER_ASSERT(update(piece.index, nullptr, 0));
        free_indices_.push_back(piece.index);
        return true;
    });
}

int RegisteredBuffers::find(const std::byte* data, std::size_t bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    auto next_piece = std::ranges::upper_bound(pieces_, begin, {}, &Piece::begin);
    if (next_piece == pieces_.begin()) return -1;
    const Piece& piece = *--next_piece;
    return bytes <= piece.end - begin && begin < piece.end ? piece.index : -1;
}

}  // namespace larder::cache
