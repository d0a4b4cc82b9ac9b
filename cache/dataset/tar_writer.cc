#include "cache/dataset/tar_writer.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace larder::cache {

void TarWriter::Free::operator()(archive* writer) const {
    ::archive_write_free(writer);
}

TarWriter::TarWriter(std::string path, FileDescriptor file, std::unique_ptr<archive, Free> writer)
    : path_(std::move(path)), file_(std::move(file)), writer_(std::move(writer)) {}

Result<TarWriter> TarWriter::create(const std::string& path) {
    auto file = open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (!file) return std::unexpected(file.error());
    std::unique_ptr<archive, Free> writer(::archive_write_new());
    if (!writer) return fail_errno(ENOMEM, "write of " + path);
    const int fd = file->get();
    TarWriter tar(path, std::move(*file), std::move(writer));
    if (::archive_write_set_format_pax_restricted(tar.writer_.get()) != ARCHIVE_OK ||
        ::archive_write_open_fd(tar.writer_.get(), fd) != ARCHIVE_OK) {
        return tar.write_error();
    }
    return tar;
}

std::unexpected<Error> TarWriter::write_error() {
    const int system_errno = ::archive_errno(writer_.get());
    if (system_errno > 0) return fail_errno(system_errno, "write of " + path_);
    const char* why = ::archive_error_string(writer_.get());
    return fail(ErrorCode::io, "write of " + path_ + ": " + (why != nullptr ? why : "unknown error"));
}

Result<TarWriter> TarWriter::in_memory(std::vector<std::byte>& bytes) {
    std::unique_ptr<archive, Free> writer(::archive_write_new());
    if (!writer) return fail_errno(ENOMEM, "write of a tar");
    TarWriter tar("a tar in memory", FileDescriptor(), std::move(writer));
    const auto append = [](archive*, void* to, const void* from, std::size_t count) -> la_ssize_t {
        const auto* first = static_cast<const std::byte*>(from);
        auto& out = *static_cast<std::vector<std::byte>*>(to);
        out.insert(out.end(), first, first + count);
        return static_cast<la_ssize_t>(count);
    };
    if (::archive_write_set_format_pax_restricted(tar.writer_.get()) != ARCHIVE_OK ||
        ::archive_write_set_bytes_per_block(tar.writer_.get(), 0) != ARCHIVE_OK ||
        ::archive_write_open(tar.writer_.get(), &bytes, nullptr, append, nullptr) != ARCHIVE_OK) {
        return tar.write_error();
    }
    return tar;
}

Result<void> TarWriter::add(const std::string& name, std::span<const std::byte> bytes) {
    const std::unique_ptr<archive_entry, decltype(&::archive_entry_free)> entry(::archive_entry_new(),
                                                                                ::archive_entry_free);
    ::archive_entry_set_pathname(entry.get(), name.c_str());
    ::archive_entry_set_size(entry.get(), static_cast<std::int64_t>(bytes.size()));
    ::archive_entry_set_filetype(entry.get(), AE_IFREG);
    ::archive_entry_set_perm(entry.get(), 0644);
    ::archive_entry_set_mtime(entry.get(), 0, 0);
    if (::archive_write_header(writer_.get(), entry.get()) != ARCHIVE_OK) return write_error();
    const auto put = ::archive_write_data(writer_.get(), bytes.data(), bytes.size());
    if (put != static_cast<la_ssize_t>(bytes.size())) return write_error();
    return {};
}

Result<void> TarWriter::finish() {
    if (::archive_write_close(writer_.get()) != ARCHIVE_OK) return write_error();
    if (file_ && ::fsync(file_.get()) != 0) return fail_errno(errno, "fsync of " + path_);
    return {};
}

}  // namespace larder::cache
