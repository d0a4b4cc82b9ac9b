#include "loader/loader_state.h"

#include <cstring>
#include <string>

#include "base/hash.h"

namespace larder::detail {
namespace {

constexpr char kStateMagic[4] = {'L', 'D', 'S', 'T'};
constexpr std::uint8_t kStateLayout = 2;
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
    writer.put(kStateLayout);
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
    if (layout != kStateLayout && layout != kStateLayoutWithId) {
        return fail(ErrorCode::unsupported, "the saved loader state has layout " + std::to_string(layout) +
                                                ", this Larder reads layouts " + std::to_string(kStateLayoutWithId) +
                                                " and " + std::to_string(kStateLayout));
    }
    LoaderState state;
    state.shuffle = (reader.get<std::uint8_t>() & 1) != 0;
    const auto levels = reader.get<std::uint16_t>();
    if (bytes.size() != kFixedBytes + levels * kLevelBytes + kCrcBytes) return damaged("its length does not fit");
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
    return state;
}

bool is_of_same_version(const LoaderState& saved, const LoaderState& loader) {
    if (saved.dataset_id == 0) return saved.content_hash == loader.content_hash;
    return saved.dataset_id == loader.dataset_id && saved.manifest_version == loader.manifest_version;
}

Result<void> check_same_options(const LoaderState& saved, const LoaderState& loader) {
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
