#include "bench/token_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <span>

#include "base/hash.h"

namespace larder::bench {
namespace {

constexpr std::uint32_t kVocabulary = 128'000;
constexpr std::uint64_t kDocumentTokensMin = 64;
constexpr std::uint64_t kDocumentTokensSpread = 2048;

// Small tokens are frequent, as with a real tokenizer.
std::int32_t token_at(std::uint64_t index) {
    const std::uint64_t drawn = mix64(index);
    const std::uint32_t range = 16u << (drawn % 14);
    return static_cast<std::int32_t>((drawn >> 8) % std::min(range, kVocabulary));
}

template <typename Number>
void write_numbers(std::ofstream& out, std::span<const Number> numbers) {
    out.write(reinterpret_cast<const char*>(numbers.data()), static_cast<std::streamsize>(numbers.size_bytes()));
}

void format_line(std::string& line, std::span<const std::int32_t> tokens) {
    line = "{\"tokens\": [";
    char digits[16];
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (i > 0) line += ", ";
        line.append(digits, std::to_chars(digits, digits + sizeof digits, tokens[i]).ptr);
    }
    line += "]}\n";
}

void write_index(std::ofstream& idx, std::uint64_t tokens) {
    std::vector<std::int32_t> lengths;
    std::vector<std::int64_t> pointers;
    std::vector<std::int64_t> documents{0};
    for (std::uint64_t at = 0; at < tokens;) {
        const std::uint64_t drawn_length = kDocumentTokensMin + mix64(~at) % kDocumentTokensSpread;
        const std::uint64_t length = std::min(drawn_length, tokens - at);
        lengths.push_back(static_cast<std::int32_t>(length));
        pointers.push_back(static_cast<std::int64_t>(at * sizeof(std::int32_t)));
        documents.push_back(static_cast<std::int64_t>(lengths.size()));
        at += length;
    }
    const std::uint64_t version = 1;
    const char int32_code = 4;
    const std::uint64_t counts[2] = {lengths.size(), documents.size()};
    idx.write("MMIDIDX\0\0", 9);
    write_numbers(idx, std::span(&version, 1));
    write_numbers(idx, std::span(&int32_code, 1));
    write_numbers(idx, std::span<const std::uint64_t>(counts));
    write_numbers(idx, std::span<const std::int32_t>(lengths));
    write_numbers(idx, std::span<const std::int64_t>(pointers));
    write_numbers(idx, std::span<const std::int64_t>(documents));
}

}  // namespace

Result<TokenFiles> write_token_files(const std::string& directory, std::uint64_t windows,
                                     std::uint32_t tokens_per_window) {
    TokenFiles files{.jsonl = directory + "/text.jsonl",
                     .lines = {0},
                     .megatron = directory + "/megatron",
                     .windows = windows,
                     .tokens_per_window = tokens_per_window};
    std::error_code error;
    std::filesystem::create_directories(files.megatron, error);
    if (error) return fail_errno(error.value(), "make " + files.megatron);
    std::ofstream jsonl(files.jsonl, std::ios::binary);
    std::ofstream bin(files.megatron + "/text.bin", std::ios::binary);
    std::ofstream idx(files.megatron + "/text.idx", std::ios::binary);
    std::vector<std::int32_t> tokens(tokens_per_window);
    std::string line;
    for (std::uint64_t i = 0; i < windows; ++i) {
        for (std::uint32_t j = 0; j < tokens_per_window; ++j) tokens[j] = token_at(i * tokens_per_window + j);
        write_numbers(bin, std::span<const std::int32_t>(tokens));
        format_line(line, tokens);
        jsonl.write(line.data(), static_cast<std::streamsize>(line.size()));
        files.lines.push_back(files.lines.back() + line.size());
    }
    write_index(idx, windows * tokens_per_window);
    jsonl.close();
    bin.close();
    idx.close();
    if (!jsonl || !bin || !idx) return fail(ErrorCode::io, "write of the token files in " + directory);
    return files;
}

}  // namespace larder::bench
