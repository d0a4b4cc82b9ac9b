#include "tests/support/sample_data.h"

#include <archive.h>
#include <archive_entry.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "base/hash.h"

namespace larder::test {
namespace {

void require(bool holds, const std::string& what) {
    if (!holds) throw std::runtime_error(what);
}

std::string numbered(const char* format, unsigned first, unsigned second = 0) {
    char text[64];
    std::snprintf(text, sizeof text, format, first, second);
    return text;
}

std::string read_range(const std::filesystem::path& path, std::uint64_t offset, std::size_t bytes) {
    std::ifstream file(path, std::ios::binary);
    std::string content(bytes, '\0');
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(content.data(), static_cast<std::streamsize>(bytes));
    require(file.good(), "read of " + path.string());
    return content;
}

}  // namespace

std::uint64_t random_below(std::uint64_t end, std::uint64_t seed) {
    return mix64(seed) % end;
}

std::string random_bytes(std::size_t bytes, std::uint64_t seed) {
    std::string content(bytes, '\0');
    for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
        const std::uint64_t word = mix64(mix64(seed) + at);
        std::memcpy(content.data() + at, &word, std::min(sizeof word, bytes - at));
    }
    return content;
}

void write_file(const std::filesystem::path& path, std::string_view content) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    file.close();
    require(file.good(), "write of " + path.string());
}

std::string read_bytes(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    require(file.good(), "open of " + path.string());
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<NamedBytes> make_tree(const std::filesystem::path& root, const TreeOptions& options) {
    std::vector<NamedBytes> files;
    for (std::uint32_t i = 0; i < options.class_count; ++i) {
        for (std::uint32_t j = 0; j < options.files_per_class; ++j) {
            const std::uint64_t seed = mix64(options.seed) + files.size();
            const std::size_t bytes = options.bytes_min + random_below(options.bytes_max - options.bytes_min + 1, seed);
            files.push_back({numbered("class_%03u/file_%05u.bin", i, j), random_bytes(bytes, seed)});
            write_file(root / files.back().name, files.back().content);
        }
    }
    return files;
}

void write_tar(const std::filesystem::path& path, TarDialect dialect, std::span<const NamedBytes> members) {
    std::filesystem::create_directories(path.parent_path());
    const std::unique_ptr<archive, decltype(&::archive_write_free)> writer(::archive_write_new(), ::archive_write_free);
    const auto set_format = dialect == TarDialect::ustar ? ::archive_write_set_format_ustar
                            : dialect == TarDialect::pax ? ::archive_write_set_format_pax
                                                         : ::archive_write_set_format_gnutar;
    require(set_format(writer.get()) == ARCHIVE_OK, "tar format");
    require(::archive_write_open_filename(writer.get(), path.c_str()) == ARCHIVE_OK, "open of " + path.string());
    for (const NamedBytes& member : members) {
        const std::unique_ptr<archive_entry, decltype(&::archive_entry_free)> entry(::archive_entry_new(),
                                                                                    ::archive_entry_free);
        const bool is_directory = member.name.ends_with('/');
        ::archive_entry_set_pathname(entry.get(), member.name.c_str());
        ::archive_entry_set_filetype(entry.get(), is_directory ? AE_IFDIR : AE_IFREG);
        ::archive_entry_set_perm(entry.get(), is_directory ? 0755 : 0644);
        ::archive_entry_set_size(entry.get(), static_cast<std::int64_t>(member.content.size()));
        ::archive_entry_set_mtime(entry.get(), 1'700'000'000, 123'456'789);  // adds a header in PAX
        require(::archive_write_header(writer.get(), entry.get()) == ARCHIVE_OK, "tar member " + member.name);
        const auto put = ::archive_write_data(writer.get(), member.content.data(), member.content.size());
        require(put == static_cast<la_ssize_t>(member.content.size()), "tar member " + member.name);
    }
    require(::archive_write_close(writer.get()) == ARCHIVE_OK, "close of " + path.string());
}

std::vector<NamedBytes> make_samples(std::uint32_t sample_count, std::size_t bytes_max, std::uint64_t seed) {
    std::vector<NamedBytes> members;
    for (std::uint32_t i = 0; i < sample_count; ++i) {
        const std::string key = numbered("%03u-%05u", static_cast<unsigned>(seed), i);
        const std::uint64_t mixed = mix64(seed) + i;
        members.push_back({key + ".bin", random_bytes(random_below(bytes_max + 1, mixed), mixed)});
        members.push_back({key + ".cls", std::to_string(mixed % 10)});
    }
    return members;
}

protocol::Manifest make_manifest(const std::filesystem::path& root, const std::string& manifest_path,
                                 std::optional<protocol::Format> format, const cache::BlockGoal& block,
                                 std::uint64_t dataset_id, const protocol::Manifest* previous) {
    const cache::IndexRequest request{
        .definition = {.url = "file://" + root.string(), .format = format, .block = block},
        .manifest = {.path = manifest_path,
                     .dataset_id = dataset_id,
                     .version = previous == nullptr ? 1 : previous->header().version + 1,
                     .previous = previous}};
    const auto report = cache::index_dataset(request, {}, {});
    require(report.has_value(), report ? "" : report.error().message);
    auto manifest = protocol::Manifest::open(manifest_path);
    require(manifest.has_value(), manifest ? "" : manifest.error().message);
    return std::move(*manifest);
}

std::string block_content(const std::filesystem::path& root, const protocol::Manifest& manifest, std::uint32_t block) {
    const protocol::Block found = manifest.block(block);
    return read_range(root / manifest.object(found.object).path, found.offset, found.length);
}

std::string sample_content(const std::filesystem::path& root, const protocol::Manifest& manifest,
                           std::uint64_t sample) {
    const protocol::SampleExtent extent = manifest.sample(sample);
    return block_content(root, manifest, manifest.block_of_sample(sample)).substr(extent.offset, extent.length);
}

}  // namespace larder::test
