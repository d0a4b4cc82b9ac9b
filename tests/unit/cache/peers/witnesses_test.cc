// Nodes' claims on blocks' digests: a single node that lies neither makes a wrong digest trusted nor keeps a right one
// from being trusted.

#include "cache/peers/witnesses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "cache/peers/digests_answer.h"

namespace larder::cache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

BlockDigest digest(std::uint8_t value) {
    BlockDigest made;
    made.bytes.fill(value);
    return made;
}

TEST(Witnesses, DigestIsTrustedOnceEnoughNodesAgree) {
    Witnesses witnesses(2, 2);
    witnesses.note(1, 0, digest(5));
    EXPECT_FALSE(witnesses.agreed(0).is_known());
    witnesses.note(1, 0, digest(5));
    EXPECT_FALSE(witnesses.agreed(0).is_known()) << "one node is one witness, however often it says so";
    witnesses.note(2, 0, digest(5));
    EXPECT_EQ(witnesses.agreed(0), digest(5));
    EXPECT_FALSE(witnesses.agreed(1).is_known());
}

TEST(Witnesses, NodeThatChangesItsWordCountsOnce) {
    Witnesses witnesses(1, 2);
    witnesses.note(1, 0, digest(5));
    witnesses.note(1, 0, digest(6));
    witnesses.note(2, 0, digest(5));
    EXPECT_FALSE(witnesses.agreed(0).is_known()) << "node 1 no longer says 5";
    witnesses.note(1, 0, digest(5));
    EXPECT_EQ(witnesses.agreed(0), digest(5));
}

TEST(Witnesses, ContradictingNodesAreNamedOnce) {
    Witnesses witnesses(1, 2);
    witnesses.note(1, 0, digest(9));
    witnesses.note(2, 0, digest(5));
    witnesses.note(3, 0, digest(8));
    witnesses.note(4, 0, digest(9));
    EXPECT_THAT(witnesses.take_contradicting(0, digest(5)), UnorderedElementsAre(1, 3, 4));
    EXPECT_THAT(witnesses.take_contradicting(0, digest(5)), IsEmpty());
    witnesses.note(3, 0, digest(5));
    EXPECT_EQ(witnesses.agreed(0), digest(5));
}

TEST(Witnesses, TwoTrustedDigestsAreNone) {
    Witnesses witnesses(1, 1);
    witnesses.note(1, 0, digest(5));
    EXPECT_EQ(witnesses.agreed(0), digest(5));
    witnesses.note(2, 0, digest(6));
    EXPECT_FALSE(witnesses.agreed(0).is_known());
}

// Random words of honest nodes and of one that lies, in any order: the lie is never trusted, and the right digest is as
// soon as two honest nodes have spoken.
TEST(Witnesses, OneLiarChangesNothing) {
    constexpr Witnesses::Node kLiar = 3;
    for (std::uint32_t seed = 0; seed < 500; ++seed) {
        std::mt19937 random(seed);
        Witnesses witnesses(4, 2);
        std::array<std::array<bool, 3>, 4> spoke{};
        for (int step = 0; step < 60; ++step) {
            const std::uint32_t block = random() % 4;
            const auto right = digest(static_cast<std::uint8_t>(10 + block));
            if (random() % 2 == 0) {
                witnesses.note(kLiar, block,
                               random() % 8 == 0 ? right : digest(static_cast<std::uint8_t>(100 + random() % 20)));
            } else {
                const auto node = static_cast<Witnesses::Node>(random() % 3);
                witnesses.note(node == 2 ? Witnesses::Node{4} : static_cast<Witnesses::Node>(node + 1), block, right);
                spoke[block][node] = true;
            }
            const BlockDigest agreed = witnesses.agreed(block);
            ASSERT_TRUE(!agreed.is_known() || agreed == right) << "seed " << seed;
            if (spoke[block][0] + spoke[block][1] + spoke[block][2] >= 2) {
                ASSERT_EQ(agreed, right) << "seed " << seed;
            }
        }
    }
}

TEST(DigestsAnswer, SurvivesItsBytesAndIsCheckedWhole) {
    const DigestsAnswer answer{.state = {.instance = 7, .changes = 9}, .blocks = {{0, digest(1)}, {5, digest(2)}}};
    const std::string text = encode_digests(answer, 6);
    EXPECT_EQ(text.size(), 32u + 2 * 20);
    const auto bytes = [](const std::string& from) { return std::as_bytes(std::span(from)); };
    const auto read = decode_digests(bytes(text), 6);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->state, answer.state);
    EXPECT_EQ(read->blocks, answer.blocks);
    EXPECT_FALSE(decode_digests(bytes(text), 7)) << "another number of blocks";
    EXPECT_FALSE(decode_digests(bytes(text.substr(0, text.size() - 1)), 6));
    EXPECT_FALSE(decode_digests(bytes(text + "x"), 6));
    EXPECT_FALSE(decode_digests(bytes(text.substr(0, 31)), 6));
    EXPECT_FALSE(decode_digests(bytes(encode_digests({.state = {}, .blocks = {{6, digest(1)}}}, 6)), 6))
        << "a block beyond the last";
    EXPECT_FALSE(decode_digests(bytes(encode_digests({.state = {}, .blocks = {{1, {}}}}, 6)), 6)) << "no digest";
    std::string claims_more = text;
    claims_more[24] = static_cast<char>(0xff);
    claims_more[31] = static_cast<char>(0xff);
    EXPECT_FALSE(decode_digests(bytes(claims_more), 6));
}

}  // namespace
}  // namespace larder::cache
