#pragma once

// Datasets for tests: random files in class directories, tar shards in each tar dialect, and their manifests. All
// content is a function of a seed. A helper that fails throws, which fails the calling test.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/dataset/dataset_index.h"
#include "cache/protocol/manifest.h"

namespace larder::test {

struct NamedBytes {
    std::string name;  // a path relative to a tree's root, or a tar member
    std::string content;
};

std::string random_bytes(std::size_t bytes, std::uint64_t seed);
// Returns a number below `end`, drawn from a seed.
std::uint64_t random_below(std::uint64_t end, std::uint64_t seed);

void write_file(const std::filesystem::path& path, std::string_view content);
std::string read_bytes(const std::filesystem::path& path);

struct TreeOptions {
    std::uint32_t class_count = 3;
    std::uint32_t files_per_class = 10;
    std::size_t bytes_min = 1;
    std::size_t bytes_max = 20'000;
    std::uint64_t seed = 1;
};
// Writes class_000/file_00000.bin, ... below `root` and returns them in the order of their paths.
std::vector<NamedBytes> make_tree(const std::filesystem::path& root, const TreeOptions& options = {});

enum class TarDialect { ustar, pax, gnu };
constexpr std::string_view name(TarDialect dialect) {
    return dialect == TarDialect::ustar ? "ustar" : dialect == TarDialect::pax ? "pax" : "gnu";
}
// Writes a tar of these members, with libarchive.
void write_tar(const std::filesystem::path& path, TarDialect dialect, std::span<const NamedBytes> members);

// Returns the members "<seed>-<i>.bin" (random bytes) and "<seed>-<i>.cls" (a digit) of `sample_count` samples.
std::vector<NamedBytes> make_samples(std::uint32_t sample_count, std::size_t bytes_max, std::uint64_t seed);

// Indexes `root` to `manifest_path` and opens the result.
protocol::Manifest make_manifest(const std::filesystem::path& root, const std::string& manifest_path,
                                 std::optional<protocol::Format> format = std::nullopt,
                                 const cache::BlockGoal& block = {}, std::uint64_t dataset_id = 1,
                                 const protocol::Manifest* previous = nullptr);

// Return the bytes that Larder must deliver for a block or sample, read from the files below `root`.
std::string block_content(const std::filesystem::path& root, const protocol::Manifest& manifest, std::uint32_t block);
std::string sample_content(const std::filesystem::path& root, const protocol::Manifest& manifest, std::uint64_t sample);

}  // namespace larder::test
