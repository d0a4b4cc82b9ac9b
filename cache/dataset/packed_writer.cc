#include "cache/dataset/packed_writer.h"

#include <fcntl.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/hash.h"
#include "base/units.h"

namespace larder::cache {

using protocol::kPackedBlockAlignment;
using protocol::PackedBlock;
using protocol::PackedHeader;
using protocol::PackedSample;

void PackedWriter::Free::operator()(ZSTD_CCtx_s* context) const {
    ::ZSTD_freeCCtx(context);
}

Result<PackedWriter> PackedWriter::create(const std::string& path, PackedOptions options) {
    auto file = open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (!file) return std::unexpected(file.error());
    PackedWriter writer(path, std::move(*file), std::move(options));
    if (writer.options_.zstd_level) {
        writer.context_.reset(::ZSTD_createCCtx());
        if (!writer.context_) return fail(ErrorCode::no_space, "no memory for zstd's state");
        ::ZSTD_CCtx_setParameter(writer.context_.get(), ZSTD_c_compressionLevel, *writer.options_.zstd_level);
    }
    return writer;
}

bool PackedWriter::fits(std::size_t sample_bytes) const {
    if (block_samples_.empty()) return true;
    return protocol::packed_stride(block_.size()) + sample_bytes <= options_.block_bytes;
}

Result<void> PackedWriter::add(std::span<const std::byte> sample) {
    if (sample.empty()) return fail(ErrorCode::invalid_argument, "an empty sample cannot be packed");
    if (sample.size() > protocol::kBlockBytesMax) {
        return fail(ErrorCode::unsupported, "a sample has " + format_bytes(sample.size()) + "; a block has at most " +
                                                format_bytes(protocol::kBlockBytesMax));
    }
    if (sample_count_ == protocol::kPackedSamplesMax) {
        return fail(ErrorCode::unsupported, path_ + " has as many samples as a packed file may have");
    }
    ++sample_count_;
    if (!fits(sample.size())) {
        if (auto ended = end_block(); !ended) return ended;
    }
    block_.resize(protocol::packed_stride(block_.size()));
    block_samples_.push_back({static_cast<std::uint32_t>(block_.size()), static_cast<std::uint32_t>(sample.size())});
    block_.insert(block_.end(), sample.begin(), sample.end());
    return {};
}

Result<bool> PackedWriter::compress() {
    if (!context_) return false;
    compressed_.resize(::ZSTD_compressBound(block_.size()));
    const std::size_t compressed_bytes =
        ::ZSTD_compress2(context_.get(), compressed_.data(), compressed_.size(), block_.data(), block_.size());
    if (::ZSTD_isError(compressed_bytes) != 0) {
        return fail(ErrorCode::io, "zstd of a block of " + path_ + ": " + ::ZSTD_getErrorName(compressed_bytes));
    }
    compressed_.resize(compressed_bytes);
    return compressed_bytes < block_.size() - block_.size() / 10;
}

Result<void> PackedWriter::end_block() {
    const auto is_smaller = compress();
    if (!is_smaller) return std::unexpected(is_smaller.error());
    const std::span<const std::byte> stored = *is_smaller ? compressed_ : block_;
    const bool have_equal_length = std::ranges::all_of(
        block_samples_, [&](const PackedSample& sample) { return sample.length == block_samples_.front().length; });
    blocks_.push_back({.offset = offset_,
                       .stored_bytes = static_cast<std::uint32_t>(stored.size()),
                       .raw_bytes = *is_smaller ? static_cast<std::uint32_t>(block_.size()) : 0,
                       .sample_count = static_cast<std::uint32_t>(block_samples_.size()),
                       .sample_bytes = have_equal_length ? block_samples_.front().length : 0,
                       .checksum = crc32c(stored),
                       .reserved = 0});
    if (!have_equal_length) rows_.insert(rows_.end(), block_samples_.begin(), block_samples_.end());
    if (auto written = write(offset_, stored); !written) return written;
    offset_ += (stored.size() + kPackedBlockAlignment - 1) / kPackedBlockAlignment * kPackedBlockAlignment;
    block_.clear();
    block_samples_.clear();
    return {};
}

Result<void> PackedWriter::finish() {
    if (!block_samples_.empty()) {
        if (auto ended = end_block(); !ended) return ended;
    }
    const auto blocks = std::as_bytes(std::span(blocks_));
    const auto rows = std::as_bytes(std::span(rows_));
    const auto info = std::as_bytes(std::span(options_.format_info));
    std::vector<std::byte> index(blocks.begin(), blocks.end());
    index.insert(index.end(), rows.begin(), rows.end());
    index.insert(index.end(), info.begin(), info.end());
    if (index.size() > protocol::kPackedIndexBytesMax) {
        return fail(ErrorCode::unsupported, "the index of " + path_ + " has " + format_bytes(index.size()) +
                                                "; at most " + format_bytes(protocol::kPackedIndexBytesMax) +
                                                " are read: choose a smaller shard size");
    }
    PackedHeader header{};
    std::memcpy(header.magic, protocol::kPackedMagic, sizeof header.magic);
    header.layout = protocol::kPackedLayout;
    header.index_offset = offset_;
    header.index_bytes = index.size();
    header.index_crc = crc32c(index);
    header.sample_format = options_.sample_format;
    header.row_count = rows_.size();
    header.block_count = static_cast<std::uint32_t>(blocks_.size());
    header.block_bytes = options_.block_bytes;
    header.format_info_bytes = static_cast<std::uint32_t>(info.size());
    header = protocol::sealed(header);
    if (auto written = write(offset_, index); !written) return written;
    if (auto written = write(0, std::as_bytes(std::span(&header, 1))); !written) return written;
    if (::fsync(file_.get()) != 0) return fail_errno(errno, "fsync of " + path_);
    return {};
}

Result<void> PackedWriter::write(std::uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t put = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_errno(errno, "write of " + path_);
        offset += static_cast<std::uint64_t>(put);
        bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
    return {};
}

}  // namespace larder::cache
