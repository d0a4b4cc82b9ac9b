#pragma once

// The same tokens in the layouts that training reads: JSONL with a list of tokens a line, and Megatron's .bin/.idx.
// Tokens and document lengths are a function of a seed.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder::bench {

struct TokenFiles {
    std::string jsonl;                 // path; line i is window i
    std::vector<std::uint64_t> lines;  // the offset of each line, and the end of the last
    std::string megatron;              // directory with text.bin and text.idx
    std::uint64_t windows = 0;
    std::uint32_t tokens_per_window = 0;
    std::uint64_t window_bytes() const { return tokens_per_window * sizeof(std::int32_t); }
};

// Writes the files below `directory`. The documents fill the windows exactly.
Result<TokenFiles> write_token_files(const std::string& directory, std::uint64_t windows,
                                     std::uint32_t tokens_per_window);

}  // namespace larder::bench
