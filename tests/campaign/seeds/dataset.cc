#include "tests/campaign/seeds/dataset.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "base/assert.h"
#include "cache/dataset/manifest_writer.h"

namespace larder::campaign {
namespace {

constexpr std::size_t kPoolBytes = 256 << 10;
constexpr std::size_t kHeadBytes = 16;

const std::array<std::byte, kPoolBytes>& pool() {
    static const auto bytes = [] {
        auto made = std::make_unique<std::array<std::byte, kPoolBytes>>();
        for (std::size_t at = 0; at < kPoolBytes; at += 8) {
            const std::uint64_t word = mix64(at ^ 0x5eed);
            std::memcpy(made->data() + at, &word, 8);
        }
        return made;
    }();
    return *bytes;
}

// The first bytes of a block are its own, the rest is a piece of the pool.
struct Content {
    Content(std::size_t bytes, std::uint64_t seed)
        : head{seed, bytes}, tail_bytes(bytes - std::min(bytes, kHeadBytes)) {
        LARDER_ASSERT(tail_bytes < kPoolBytes);
        tail = pool().data() + mix64(seed) % (kPoolBytes - tail_bytes);
    }
    std::uint64_t head[2];
    const std::byte* tail;
    std::size_t tail_bytes;
};

}  // namespace

void fill_content(std::span<std::byte> into, std::uint64_t seed) {
    const Content content(into.size(), seed);
    std::memcpy(into.data(), content.head, std::min(into.size(), kHeadBytes));
    if (content.tail_bytes > 0) std::memcpy(into.data() + kHeadBytes, content.tail, content.tail_bytes);
}

bool has_content(std::span<const std::byte> bytes, std::uint64_t seed) {
    const Content content(bytes.size(), seed);
    return std::memcmp(bytes.data(), content.head, std::min(bytes.size(), kHeadBytes)) == 0 &&
           (content.tail_bytes == 0 || std::memcmp(bytes.data() + kHeadBytes, content.tail, content.tail_bytes) == 0);
}

SimulatedDataset::SimulatedDataset(std::string name, std::uint32_t objects, std::uint32_t bytes_max, bool checksums,
                                   WorldRandom& random)
    : name_(std::move(name)), bytes_max_(bytes_max), checksums_(checksums) {
    Edition first;
    for (std::uint32_t i = 0; i < objects; ++i) first.push_back(make_object(i, random));
    editions_.push_back(std::make_shared<const Edition>(std::move(first)));
}

SimulatedObject SimulatedDataset::make_object(std::uint32_t number, WorldRandom& random) {
    char path[16];
    std::snprintf(path, sizeof path, "%06u", number);
    last_mtime_ns_ += 1000;
    return {.path = path,
            .bytes = static_cast<std::uint32_t>(1 + random.below(bytes_max_)),
            .mtime_ns = last_mtime_ns_,
            .seed = mix64(hash_name(name_) ^ mix64(number) ^ static_cast<std::uint64_t>(last_mtime_ns_))};
}

void SimulatedDataset::change(WorldRandom& random) {
    Edition next = *editions_.back();
    const std::uint64_t part = 1 + random.below(4);
    for (std::uint32_t i = 0; i < next.size(); ++i) {
        if (random.below(10) < part) next[i] = make_object(i, random);
    }
    editions_.push_back(std::make_shared<const Edition>(std::move(next)));
}

const SimulatedObject* SimulatedDataset::find(std::string_view path) const {
    const Edition& now = *editions_.back();
    const auto found = std::ranges::lower_bound(now, path, {}, &SimulatedObject::path);
    return found == now.end() || found->path != path ? nullptr : &*found;
}

std::shared_ptr<const protocol::Manifest> SimulatedDataset::index(std::size_t edition, std::uint64_t dataset_id,
                                                                  std::uint64_t version,
                                                                  const protocol::Manifest* previous,
                                                                  const std::string& path) const {
    cache::DatasetContent content;
    std::vector<std::byte> bytes;
    for (const SimulatedObject& object : *editions_[edition]) {
        content.add_object(object.path, object.bytes, object.mtime_ns, protocol::kNoLabel);
        if (!checksums_) continue;
        bytes.resize(object.bytes);
        fill_content(bytes, object.seed);
        content.objects.back().first_block = static_cast<std::uint32_t>(content.checksums.size());
        content.checksums.push_back(crc32c(bytes));
    }
    const auto written =
        cache::write_manifest(content, {.name = name_, .url = "file:///" + name_, .format = protocol::Format::raw},
                              {.path = path, .dataset_id = dataset_id, .version = version, .previous = previous});
    LARDER_ASSERT(written.has_value());
    auto manifest = protocol::Manifest::open(path);
    LARDER_ASSERT(manifest.has_value());
    return std::make_shared<const protocol::Manifest>(std::move(*manifest));
}

}  // namespace larder::campaign
