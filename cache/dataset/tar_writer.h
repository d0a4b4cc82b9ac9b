#pragma once

// Writes a tar to a file or to memory, with libarchive. Headers are ustar; a name or size that does not fit gets a PAX
// header. Times and owners are zero, so that equal input gives equal bytes. Do not use a writer after an error. One
// thread.

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
    // Appends to `bytes`, which must outlive the writer.
    static Result<TarWriter> in_memory(std::vector<std::byte>& bytes);

    Result<void> add(const std::string& name, std::span<const std::byte> bytes);

    // Writes the end of the archive (kTarEndBytes bytes in memory) and syncs a file.
    Result<void> finish();

private:
    struct Free {
        void operator()(archive* writer) const;
    };

    TarWriter(std::string path, FileDescriptor file, std::unique_ptr<archive, Free> writer);
    std::unexpected<Error> write_error();

    std::string path_;
    FileDescriptor file_;  // outlives writer_, which flushes to it when freed
    std::unique_ptr<archive, Free> writer_;
};

}  // namespace larder::cache
