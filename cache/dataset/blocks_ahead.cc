#include "cache/dataset/blocks_ahead.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "cache/protocol/decompress_block.h"

namespace larder::cache {

BlocksAhead::BlocksAhead(ObjectSource& source, const protocol::Manifest& manifest, std::vector<std::uint32_t> order)
    : source_(source), manifest_(manifest), order_(std::move(order)) {
    for (std::size_t i = 0; i < std::min(kReadsMax, order_.size()); ++i) threads_.emplace_back([this] { run(); });
}

BlocksAhead::~BlocksAhead() {
    {
        const std::scoped_lock lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    threads_.clear();
}

Result<BlockBytes> BlocksAhead::next() {
    std::unique_lock lock(mutex_);
    LARDER_ASSERT(started_ < order_.size() || !slots_.empty());
    changed_.wait(lock, [&] { return !slots_.empty() && slots_.front().block.has_value(); });
    Slot slot = std::move(slots_.front());
    slots_.pop_front();
    bytes_ -= slot.bytes;
    lock.unlock();
    changed_.notify_all();
    return std::move(*slot.block);
}

void BlocksAhead::run() {
    protocol::Decompressor decompressor;
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return stopping_ || started_ == order_.size() || may_start(); });
        if (stopping_ || started_ == order_.size()) return;
        const std::uint32_t block = order_[started_++];
        Slot& slot = slots_.emplace_back();
        slot.bytes = memory_bytes(block);
        bytes_ += slot.bytes;
        lock.unlock();
        auto read_block = read(block, decompressor);
        lock.lock();
        slot.block = std::move(read_block);
        changed_.notify_all();
    }
}

bool BlocksAhead::may_start() const {
    if (slots_.empty()) return true;
    return slots_.size() < kReadsMax && bytes_ + memory_bytes(order_[started_]) <= kBytesMax;
}

std::uint64_t BlocksAhead::memory_bytes(std::uint32_t block) const {
    const protocol::Block info = manifest_.block(block);
    return std::uint64_t{info.length} + info.raw_bytes;
}

Result<BlockBytes> BlocksAhead::read(std::uint32_t index, protocol::Decompressor& decompressor) {
    const protocol::Block block = manifest_.block(index);
    const protocol::Object object = manifest_.object(block.object);
    const std::string path(object.path);
    BlockBytes read;
    auto opened = source_.open_as(path, object.size_bytes, object.mtime_ns);
    if (!opened) return std::unexpected(opened.error());
    read.reader = std::move(*opened);
    const auto bytes = read.reader->read(block.offset, block.length);
    if (!bytes) return std::unexpected(bytes.error().within(path));
    read.bytes = *bytes;
    if (block.raw_bytes == 0) return read;
    auto raw = protocol::decompress_block(manifest_, block, *bytes, decompressor);
    if (!raw) return std::unexpected(raw.error().within(path));
    read.raw = std::move(*raw);
    read.reader.reset();
    read.bytes = {read.raw.get(), block.raw_bytes};
    return read;
}

}  // namespace larder::cache
