#include "loader/loader_state.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "base/hash.h"

namespace larder::detail {
namespace {

constexpr char kStateMagic[4] = {'L', 'D', 'S', 'T'};
constexpr std::uint8_t kStateLayout = 2;
constexpr std::uint8_t kStateLayoutShared = 3;
constexpr std::uint8_t kStateLayoutWithId = 1;
constexpr std::size_t kFixedBytes = 4 + 1 + 1 + 2 + 5 * 8 + 4;
constexpr std::size_t kLevelBytes = 1 + 3 * 4 + 8;
constexpr std::size_t kCrcBytes = 4;
constexpr std::uint64_t kVirtualRanksMax = std::uint64_t{1} << 24;

class Writer {
public:
    template <typename T>
    void put(T value) {
        const auto bytes = std::as_bytes(std::span(&value, 1));
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    std::vector<std::byte> take() && { return std::move(bytes_); }
    std::span<const std::byte> bytes() const { return bytes_; }

private:
    std::vector<std::byte> bytes_;
};

class Reader {
public:
    explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
    template <typename T>
    T get() {
        T value;
        std::memcpy(&value, rest_.data(), sizeof value);
        rest_ = rest_.subspan(sizeof value);
        return value;
    }

private:
    std::span<const std::byte> rest_;
};

std::unexpected<Error> damaged(const std::string& why) {
    return fail(ErrorCode::corrupt, "the saved loader state is damaged: " + why);
}

std::optional<SharedProgress> decode_progress(std::span<const std::byte> bytes) {
    constexpr std::size_t kHeadBytes = 2 * sizeof(std::uint32_t);
    if (bytes.size() < kHeadBytes) return std::nullopt;
    Reader reader(bytes);
    SharedProgress progress;
    progress.loaders = reader.get<std::uint32_t>();
    const auto count = reader.get<std::uint32_t>();
    if (progress.loaders == 0 || progress.loaders > kVirtualRanksMax || count > progress.loaders ||
        bytes.size() - kHeadBytes < count * sizeof(std::uint32_t)) {
        return std::nullopt;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
        const auto part = reader.get<std::uint32_t>();
        if (part >= progress.loaders || (i > 0 && part <= progress.parts.back())) return std::nullopt;
        progress.parts.push_back(part);
    }
    auto delivered = DeliveredSamples::decode(bytes.subspan(kHeadBytes + count * sizeof(std::uint32_t)));
    if (!delivered) return std::nullopt;
    progress.delivered = std::move(*delivered);
    return progress;
}

template <typename T>
Result<void> check_same(const char* what, T saved, T loader) {
    if (saved == loader) return {};
    return fail(ErrorCode::invalid_argument, "the saved loader state has " + std::string(what) + " " +
                                                 std::to_string(saved) + ", this loader has " + std::to_string(loader) +
                                                 ": the order of samples would differ");
}

}  // namespace

std::vector<std::byte> encode(const LoaderState& state) {
    Writer writer;
    for (const char c : kStateMagic) writer.put(c);
    writer.put(state.shared ? kStateLayoutShared : kStateLayout);
    writer.put(static_cast<std::uint8_t>(state.shuffle ? 1 : 0));
    writer.put(static_cast<std::uint16_t>(state.history.size()));
    writer.put(state.seed);
    writer.put(state.epoch);
    writer.put(state.content_hash);
    writer.put(state.manifest_version);
    writer.put(state.sample_count);
    writer.put(state.window_blocks);
    for (const DealLevel& level : state.history) {
        writer.put(static_cast<std::uint8_t>((level.contiguous ? 1 : 0) | (level.drop_last ? 2 : 0)));
        writer.put(level.world_size);
        writer.put(level.worker_count);
        writer.put(level.batch_size);
        writer.put(level.taken);
    }
    if (state.shared) {
        writer.put(state.shared->loaders);
        writer.put(static_cast<std::uint32_t>(state.shared->parts.size()));
        for (const std::uint32_t part : state.shared->parts) writer.put(part);
        for (const std::byte byte : state.shared->delivered.encode()) writer.put(byte);
    }
    writer.put(crc32c(writer.bytes()));
    return std::move(writer).take();
}

Result<LoaderState> decode_state(std::span<const std::byte> bytes) {
    if (bytes.size() < kFixedBytes + kCrcBytes) return damaged(std::to_string(bytes.size()) + " bytes are too few");
    if (std::memcmp(bytes.data(), kStateMagic, sizeof kStateMagic) != 0) {
        return fail(ErrorCode::invalid_argument, "these bytes are not a loader state");
    }
    Reader crc_reader(bytes.last(kCrcBytes));
    if (crc_reader.get<std::uint32_t>() != crc32c(bytes.first(bytes.size() - kCrcBytes))) {
        return damaged("its checksum does not match");
    }
    Reader reader(bytes.subspan(sizeof kStateMagic));
    const auto layout = reader.get<std::uint8_t>();
    if (layout != kStateLayout && layout != kStateLayoutWithId && layout != kStateLayoutShared) {
        return fail(ErrorCode::unsupported, "the saved loader state has layout " + std::to_string(layout) +
                                                ", this Larder reads layouts " + std::to_string(kStateLayoutWithId) +
                                                " to " + std::to_string(kStateLayoutShared));
    }
    LoaderState state;
    state.shuffle = (reader.get<std::uint8_t>() & 1) != 0;
    const auto levels = reader.get<std::uint16_t>();
    const std::size_t head_bytes = kFixedBytes + levels * kLevelBytes;
    const bool is_shared = layout == kStateLayoutShared;
    if (is_shared ? levels != 0 : bytes.size() != head_bytes + kCrcBytes) return damaged("its length does not fit");
    state.seed = reader.get<std::uint64_t>();
    state.epoch = reader.get<std::uint64_t>();
    (layout == kStateLayoutWithId ? state.dataset_id : state.content_hash) = reader.get<std::uint64_t>();
    state.manifest_version = reader.get<std::uint64_t>();
    state.sample_count = reader.get<std::uint64_t>();
    state.window_blocks = reader.get<std::uint32_t>();
    for (std::uint16_t i = 0; i < levels; ++i) {
        DealLevel level;
        const auto flags = reader.get<std::uint8_t>();
        level.contiguous = (flags & 1) != 0;
        level.drop_last = (flags & 2) != 0;
        level.world_size = reader.get<std::uint32_t>();
        level.worker_count = reader.get<std::uint32_t>();
        level.batch_size = reader.get<std::uint32_t>();
        level.taken = reader.get<std::uint64_t>();
        if (level.world_size == 0 || level.worker_count == 0 || level.batch_size == 0 ||
            std::uint64_t{level.world_size} * level.worker_count > kVirtualRanksMax) {
            return damaged("its division of samples among ranks and workers is invalid");
        }
        state.history.push_back(level);
    }
    if (is_shared) {
        auto progress = decode_progress(bytes.subspan(head_bytes, bytes.size() - head_bytes - kCrcBytes));
        if (!progress) return damaged("what it says of delivered samples is invalid");
        state.shared = std::move(*progress);
    }
    return state;
}

Result<LoaderState> merge(std::span<const LoaderState> states) {
    const auto bad = [](const std::string& what) { return fail(ErrorCode::invalid_argument, what); };
    if (states.empty()) return bad("there is no loader state to merge");
    LoaderState merged = states.front();
    for (const LoaderState& state : states) {
        if (!state.shared)
            return bad("only states of loaders with the shared order are merged: any other is the whole job's");
        if (auto same = check_same_order(state, merged); !same) return std::unexpected(same.error());
        if (state.epoch != merged.epoch) {
            return bad("the loader states are of epochs " + std::to_string(merged.epoch) + " and " +
                       std::to_string(state.epoch) + ": take them after the same step");
        }
        SharedProgress& into = *merged.shared;
        if (state.shared->loaders != into.loaders || !into.delivered.is_like(state.shared->delivered)) {
            return bad("the loader states are of jobs with different numbers of ranks, workers or samples");
        }
        into.delivered.merge(state.shared->delivered);
        std::vector<std::uint32_t> parts;
        std::ranges::set_union(into.parts, state.shared->parts, std::back_inserter(parts));
        into.parts = std::move(parts);
    }
    return merged;
}

bool is_of_same_version(const LoaderState& saved, const LoaderState& loader) {
    if (saved.dataset_id == 0) return saved.content_hash == loader.content_hash;
    return saved.dataset_id == loader.dataset_id && saved.manifest_version == loader.manifest_version;
}

Result<void> check_same_options(const LoaderState& saved, const LoaderState& loader) {
    if (saved.shared.has_value() != loader.shared.has_value()) {
        return fail(ErrorCode::invalid_argument, std::string("the saved loader state has the order ") +
                                                     (saved.shared ? "shared" : "seeded") + ", this loader has " +
                                                     (loader.shared ? "shared" : "seeded"));
    }
    if (auto r = check_same("seed", saved.seed, loader.seed); !r) return r;
    if (saved.shuffle == loader.shuffle) return {};
    return fail(ErrorCode::invalid_argument, std::string("the saved loader state has shuffle ") +
                                                 (saved.shuffle ? "on" : "off") + ", this loader has it " +
                                                 (loader.shuffle ? "on" : "off"));
}

Result<void> check_same_order(const LoaderState& saved, const LoaderState& loader) {
    if (!is_of_same_version(saved, loader)) {
        return fail(ErrorCode::invalid_argument,
                    "the saved loader state is of another dataset, or of another version of it");
    }
    if (auto r = check_same("sample count", saved.sample_count, loader.sample_count); !r) return r;
    if (auto r = check_same_options(saved, loader); !r) return r;
    if (!saved.shuffle) return {};
    return check_same("shuffle window (blocks)", saved.window_blocks, loader.window_blocks);
}

}  // namespace larder::detail
