#include "cache/dataset/pack_shards.h"

#include <cstdio>
#include <optional>

#include "cache/dataset/pack_members.h"
#include "cache/dataset/packed_writer.h"
#include "cache/dataset/tar_writer.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kTarOverheadBytes = 1024;  // a member's header and, on average, its padding

class ShardNames {
public:
    ShardNames(const PackRequest& request, const std::string& directory, const char* suffix)
        : stem_(directory + "/" + request.shard_name), suffix_(suffix) {}
    std::string next() {
        char number[32];
        const int length = std::snprintf(number, sizeof number, "-%06llu", static_cast<unsigned long long>(count_++));
        return stem_ + std::string(number, static_cast<std::size_t>(length)) + suffix_;
    }
    std::uint64_t count() const { return count_; }

private:
    std::string stem_;
    std::string suffix_;
    std::uint64_t count_ = 0;
};

class TarShards final : public PackShards {
public:
    TarShards(const PackRequest& request, const std::string& directory, PackMembers members)
        : shard_bytes_max_(request.shard_bytes), names_(request, directory, ".tar"), members_(std::move(members)) {}

    Result<void> add(const SourceSample& sample) override {
        const auto members = members_.split(sample);
        if (!members) return std::unexpected(members.error());
        std::uint64_t bytes = 0;
        for (const NewMember& member : *members) bytes += member.bytes.size() + kTarOverheadBytes;
        if (shard_ && shard_bytes_ + bytes > shard_bytes_max_) {
            if (auto finished = finish(); !finished) return finished;
        }
        if (!shard_) {
            auto shard = TarWriter::create(names_.next());
            if (!shard) return std::unexpected(shard.error());
            shard_.emplace(std::move(*shard));
            shard_bytes_ = 0;
        }
        shard_bytes_ += bytes;
        for (const NewMember& member : *members) {
            if (auto added = shard_->add(member.name, member.bytes); !added) return added;
        }
        return {};
    }

    Result<void> finish() override {
        if (!shard_) return {};
        auto finished = shard_->finish();
        shard_.reset();
        return finished;
    }

    std::uint64_t shard_count() const override { return names_.count(); }

private:
    std::uint64_t shard_bytes_max_;
    ShardNames names_;
    PackMembers members_;
    std::optional<TarWriter> shard_;
    std::uint64_t shard_bytes_ = 0;
};

class PackedShards final : public PackShards {
public:
    // `members`: set for raw sources only, whose samples are stored as tar members.
    PackedShards(const PackRequest& request, const std::string& directory, PackedOptions options,
                 std::optional<PackMembers> members)
        : shard_bytes_max_(request.shard_bytes),
          names_(request, directory, ".larder"),
          options_(std::move(options)),
          members_(std::move(members)) {}

    Result<void> add(const SourceSample& sample) override {
        std::span<const std::byte> bytes = sample.bytes;
        if (members_) {
            const auto members = members_->split(sample);
            if (!members) return std::unexpected(members.error());
            auto tar = write_tar(*members);
            if (!tar) return std::unexpected(tar.error());
            tar_ = std::move(*tar);
            bytes = tar_;
        }
        const bool is_full = shard_ && (shard_->bytes() + bytes.size() > shard_bytes_max_ ||
                                        shard_->sample_count() == protocol::kPackedSamplesMax);
        if (is_full) {
            if (auto finished = finish(); !finished) return finished;
        }
        if (!shard_) {
            auto shard = PackedWriter::create(names_.next(), options_);
            if (!shard) return std::unexpected(shard.error());
            shard_.emplace(std::move(*shard));
        }
        return shard_->add(bytes);
    }

    Result<void> finish() override {
        if (!shard_) return {};
        auto finished = shard_->finish();
        shard_.reset();
        return finished;
    }

    std::uint64_t shard_count() const override { return names_.count(); }

private:
    static Result<std::vector<std::byte>> write_tar(std::span<const NewMember> members) {
        std::vector<std::byte> bytes;
        auto tar = TarWriter::in_memory(bytes);
        if (!tar) return std::unexpected(tar.error());
        for (const NewMember& member : members) {
            if (auto added = tar->add(member.name, member.bytes); !added) return std::unexpected(added.error());
        }
        if (auto finished = tar->finish(); !finished) return std::unexpected(finished.error());
        bytes.resize(bytes.size() - kTarEndBytes);
        return bytes;
    }

    std::uint64_t shard_bytes_max_;
    ShardNames names_;
    PackedOptions options_;
    std::optional<PackMembers> members_;
    std::vector<std::byte> tar_;
    std::optional<PackedWriter> shard_;
};

}  // namespace

Result<std::unique_ptr<PackShards>> make_pack_shards(const PackRequest& request, const std::string& directory,
                                                     const protocol::Manifest& manifest) {
    auto members = PackMembers::of(manifest);
    if (!members) return std::unexpected(members.error());
    if (request.format == protocol::Format::webdataset) {
        return std::make_unique<TarShards>(request, directory, std::move(*members));
    }
    const bool is_raw = manifest.sample_format() == protocol::Format::raw;
    const auto info = manifest.format_info();
    PackedOptions options{.sample_format = is_raw ? protocol::Format::webdataset : manifest.sample_format(),
                          .format_info = {reinterpret_cast<const char*>(info.data()), info.size()},
                          .zstd_level = request.zstd_level};
    switch (request.block.target) {
        case protocol::BlockTarget::sample: options.block_bytes = 0; break;
        case protocol::BlockTarget::object: options.block_bytes = protocol::kBlockBytesMax; break;
        case protocol::BlockTarget::bytes: options.block_bytes = static_cast<std::uint32_t>(request.block.bytes); break;
    }
    return std::make_unique<PackedShards>(request, directory, std::move(options),
                                          is_raw ? std::optional(std::move(*members)) : std::nullopt);
}

}  // namespace larder::cache
