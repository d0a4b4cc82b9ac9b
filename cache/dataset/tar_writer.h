#pragma once

// A tar file being written, through libarchive: ustar headers, PAX ones only where a name or size needs them, and
// nothing that varies between runs (no times, no owners). One thread; the first error sticks to the call that meets it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

struct archive;

namespace larder::cache {

class TarWriter {
public:
    static Result<TarWriter> create(const std::string& path);

    // Begins a member of this size, whose bytes `put` then adds, in any pieces.
    Result<void> begin(const std::string& name, std::uint64_t size_bytes);
    Result<void> put(std::span<const std::byte> bytes);
    Result<void> add(const std::string& name, std::string_view content);

    // Ends the archive and brings it to disk.
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
