// The decompressor returns exactly the bytes that were compressed, or an error if their size is not the expected one.

#include "cache/protocol/decompressor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <string>

namespace larder::protocol {
namespace {

using ::testing::HasSubstr;

std::string compressed(const std::string& raw) {
    std::string out(::ZSTD_compressBound(raw.size()), '\0');
    out.resize(::ZSTD_compress(out.data(), out.size(), raw.data(), raw.size(), 3));
    return out;
}

// Like compressed(), but without the size in the frame header, as streaming writers leave it.
std::string streamed(const std::string& raw) {
    ZSTD_CCtx* context = ::ZSTD_createCCtx();
    ::ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
    std::string out(::ZSTD_compressBound(raw.size()), '\0');
    out.resize(::ZSTD_compress2(context, out.data(), out.size(), raw.data(), raw.size()));
    ::ZSTD_freeCCtx(context);
    return out;
}

std::string run(const std::string& input, std::size_t raw_bytes) {
    Decompressor decompressor;
    const auto raw = decompressor.run(std::as_bytes(std::span(input)), static_cast<std::uint32_t>(raw_bytes));
    return raw ? std::string(reinterpret_cast<const char*>(raw->get()), raw_bytes) : raw.error().message;
}

TEST(Decompressor, RestoresTheCompressedBytes) {
    const std::string raw(100'000, 'x');
    EXPECT_EQ(run(compressed(raw), raw.size()), raw);
    EXPECT_EQ(run(streamed(raw), raw.size()), raw);
}

TEST(Decompressor, WrongExpectedSizeIsAnError) {
    const std::string raw(100'000, 'x');
    EXPECT_THAT(run(compressed(raw), raw.size() - 1), HasSubstr("not a zstd frame of 99999 bytes"));
    EXPECT_THAT(run(compressed(raw), raw.size() + 1), HasSubstr("not a zstd frame of 100001 bytes"));
    EXPECT_THAT(run(streamed(raw), raw.size() - 1), HasSubstr("zstd: "));
    EXPECT_THAT(run(streamed(raw), raw.size() + 1), HasSubstr("has 100000 bytes once decompressed"));
}

TEST(Decompressor, SizeThatTheBytesCannotHoldIsAnErrorBeforeAnAllocation) {
    const std::string frame = streamed("short");
    EXPECT_THAT(run(frame, 1 << 29),
                HasSubstr("its " + std::to_string(frame.size()) + " bytes cannot hold 536870912 decompressed bytes"));
    const std::string raw(64 << 20, '\0');
    EXPECT_EQ(run(streamed(raw), raw.size()), raw) << "nothing shrinks more than zeros";
}

TEST(Decompressor, DamagedInputFailsWithoutAffectingTheNextCall) {
    const std::string raw(100'000, 'x');
    const std::string good = compressed(raw);
    EXPECT_THAT(run(good.substr(0, good.size() - 1), raw.size()), HasSubstr("zstd: "));
    EXPECT_THAT(run("", 5), HasSubstr("not a zstd frame"));
    EXPECT_THAT(run("plain text, no frame", 5), HasSubstr("not a zstd frame"));

    Decompressor decompressor;
    const std::string bad = good.substr(0, 12);
    EXPECT_FALSE(decompressor.run(std::as_bytes(std::span(bad)), 100'000));
    EXPECT_TRUE(decompressor.run(std::as_bytes(std::span(good)), 100'000));
}

}  // namespace
}  // namespace larder::protocol
