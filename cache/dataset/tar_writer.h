#pragma once

// A tar file being written, through libarchive: ustar headers, PAX ones only where a name or size needs them, and
// nothing that varies between runs (no times, no owners). In a file or in memory. One thread; the first error sticks to
// the call that meets it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

struct archive;

namespace larder::cache {

inline constexpr std::size_t kTarEndBytes = 1024;

class TarWriter {
public:
    static Result<TarWriter> create(const std::string& path);
    // Appends to `bytes`, which outlives it.
    static Result<TarWriter> in_memory(std::vector<std::byte>& bytes);

    Result<void> add(const std::string& name, std::span<const std::byte> bytes);

    // Ends the archive, with kTarEndBytes in memory, and brings a file to disk.
    Result<void> finish();

private:
    struct Free {
        void operator()(archive* writer) const;
    };

    TarWriter(std::string path, FileDescriptor file, std::unique_ptr<archive, Free> writer);
    std::unexpected<Error> failed();

    std::string path_;
    FileDescriptor file_;  // outlives writer_, which flushes to it when freed
    std::unique_ptr<archive, Free> writer_;
};

}  // namespace larder::cache
