#include "loader/loader_state.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "base/hash.h"

namespace larder::detail {
namespace {

LoaderState some_state() {
    return {.seed = 42,
            .epoch = 3,
            .content_hash = 0x1234567890abcdef,
            .manifest_version = 2,
            .sample_count = 1281167,
            .window_blocks = 16,
            .shuffle = true,
            .history = {{.contiguous = false, .taken = 4096}, {true, true, 8, 4, 256, 17}}};
}

TEST(State, DecodesWhatWasEncoded) {
    const LoaderState state = some_state();
    const auto bytes = encode(state);
    EXPECT_LE(bytes.size(), 100u);
    const auto back = decode_state(bytes);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, state);
}

// Layout 1 had the dataset's id in place of the hash.
TEST(State, StateOfLayout1IsOfOneNodesVersion) {
    auto bytes = encode(some_state());
    bytes[4] = std::byte{1};
    const std::uint32_t crc = crc32c(std::span(bytes).first(bytes.size() - sizeof(crc)));
    std::memcpy(&bytes[bytes.size() - sizeof crc], &crc, sizeof crc);
    const auto saved = decode_state(bytes);
    ASSERT_TRUE(saved) << saved.error().message;
    EXPECT_EQ(saved->dataset_id, some_state().content_hash);

    LoaderState loader = some_state();
    loader.dataset_id = saved->dataset_id;
    EXPECT_TRUE(check_same_order(*saved, loader));
    loader.manifest_version = 3;
    EXPECT_FALSE(check_same_order(*saved, loader));
    loader.manifest_version = saved->manifest_version;
    loader.dataset_id = 1;
    EXPECT_FALSE(check_same_order(*saved, loader));
}

TEST(State, AnyFlippedBitOrLostByteIsDetected) {
    const auto bytes = encode(some_state());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            auto broken = bytes;
            broken[i] ^= static_cast<std::byte>(1 << bit);
            EXPECT_FALSE(decode_state(broken)) << "byte " << i;
        }
        EXPECT_FALSE(decode_state(std::span(bytes).first(i)));
    }
}

TEST(State, MismatchIsNamed) {
    const LoaderState loader = some_state();
    const auto message = [&](auto change) {
        LoaderState saved = some_state();
        change(saved);
        const auto result = check_same_order(saved, loader);
        return result ? std::string() : result.error().message;
    };
    EXPECT_EQ(message([](LoaderState& s) { s.epoch = 9; }), "");
    EXPECT_NE(message([](LoaderState& s) { s.seed = 7; }).find("seed 7, this loader has 42"), std::string::npos);
    EXPECT_NE(message([](LoaderState& s) { s.content_hash = 1; }).find("another dataset"), std::string::npos);
    EXPECT_EQ(message([](LoaderState& s) { s.manifest_version = 1; }), "") << "a node's own number";
    EXPECT_NE(message([](LoaderState& s) { s.shuffle = false; }).find("shuffle off"), std::string::npos);
    EXPECT_NE(message([](LoaderState& s) { s.window_blocks = 1; }).find("window"), std::string::npos);
}

}  // namespace
}  // namespace larder::detail
