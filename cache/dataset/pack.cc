#include "cache/dataset/pack.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <optional>

#include "base/file.h"
#include "base/hash.h"
#include "cache/dataset/index_raw.h"
#include "cache/dataset/tar_writer.h"
#include "cache/remote/file_objects.h"

namespace larder::cache {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;
constexpr std::uint64_t kTarOverheadBytes = 1024;  // a member's header and, on average, its padding

// A directory that goes away unless `keep_as` gave it its name.
class WorkDirectory {
public:
    static Result<WorkDirectory> make_beside(const std::string& destination) {
        std::string name = destination + ".XXXXXX";
        if (::mkdtemp(name.data()) == nullptr) return fail_errno(errno, "make a directory beside " + destination);
        if (::chmod(name.c_str(), 0755) != 0) return fail_errno(errno, "chmod " + name);
        return WorkDirectory(std::move(name));
    }
    WorkDirectory(WorkDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
    WorkDirectory& operator=(WorkDirectory&&) = delete;
    ~WorkDirectory() {
        std::error_code ignored;
        if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
    }

    const std::string& path() const { return path_; }

    Result<void> keep_as(const std::string& destination) {
        auto directory = open_file(path_, O_RDONLY | O_DIRECTORY);
        if (!directory) return std::unexpected(directory.error());
        if (::fsync(directory->get()) != 0) return fail_errno(errno, "fsync of " + path_);
        if (::rename(path_.c_str(), destination.c_str()) != 0) return fail_errno(errno, "rename to " + destination);
        path_.clear();
        return {};
    }

private:
    explicit WorkDirectory(std::string path) : path_(std::move(path)) {}
    std::string path_;
};

// The field a file becomes: its suffix in lower case, or "bin" where it has none that can name a field.
std::string field_name(std::string_view path) {
    const std::string_view base = path.substr(path.rfind('/') + 1);
    const std::size_t dot = base.rfind('.');
    std::string suffix(dot == std::string_view::npos ? "" : base.substr(dot + 1));
    const auto is_letter_or_digit = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
    for (char& c : suffix) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    // "cls" is the label's.
    if (suffix.empty() || suffix == "cls" || !std::ranges::all_of(suffix, is_letter_or_digit)) return "bin";
    return suffix;
}

std::string numbered(const char* format, std::uint64_t number) {
    char text[32];
    const int length = std::snprintf(text, sizeof text, format, static_cast<unsigned long long>(number));
    return {text, static_cast<std::size_t>(length)};
}

class Packer {
public:
    Packer(const PackRequest& request, std::string directory, const DatasetContent& content)
        : request_(request), directory_(std::move(directory)), content_(content), buffer_(kCopyBytes) {}

    Result<void> add(std::uint64_t index) {
        const auto& object = content_.objects[index];
        const std::string label = object.label == protocol::kNoLabel ? "" : std::to_string(object.label);
        const std::uint64_t bytes = object.size_bytes + kTarOverheadBytes + (label.empty() ? 0 : kTarOverheadBytes);
        if (shard_ && shard_bytes_ + bytes > request_.shard_bytes) {
            if (auto finished = finish(); !finished) return finished;
        }
        if (!shard_) {
            auto shard =
                TarWriter::create(directory_ + "/" + request_.shard_name + numbered("-%06llu.tar", shard_count_));
            if (!shard) return std::unexpected(shard.error());
            shard_.emplace(std::move(*shard));
            shard_bytes_ = 0;
            ++shard_count_;
        }
        shard_bytes_ += bytes;
        const std::string key = numbered("%09llu", index);
        if (auto copied = copy(object, key + "." + field_name(content_.name(object))); !copied) return copied;
        if (!label.empty()) return shard_->add(key + ".cls", label);
        return {};
    }

    Result<void> finish() {
        auto finished = shard_->finish();
        shard_.reset();
        return finished;
    }

    std::uint64_t shard_count() const { return shard_count_; }

private:
    Result<void> copy(const DatasetContent::Object& object, const std::string& member) {
        const std::string path = request_.source + "/" + std::string(content_.name(object));
        auto file = open_file(path, O_RDONLY);
        if (!file) return std::unexpected(file.error());
        if (auto begun = shard_->begin(member, object.size_bytes); !begun) return begun;
        for (std::uint64_t left = object.size_bytes; left > 0;) {
            const ssize_t got = ::read(file->get(), buffer_.data(), std::min<std::uint64_t>(left, buffer_.size()));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return fail_errno(errno, "read " + path);
            if (got == 0) return fail(ErrorCode::changed, path + " became shorter while it was packed");
            if (auto put = shard_->put(std::span(buffer_).first(static_cast<std::size_t>(got))); !put) return put;
            left -= static_cast<std::uint64_t>(got);
        }
        return {};
    }

    const PackRequest& request_;
    const std::string directory_;
    const DatasetContent& content_;
    std::vector<std::byte> buffer_;
    std::optional<TarWriter> shard_;
    std::uint64_t shard_bytes_ = 0;
    std::uint64_t shard_count_ = 0;
};

Result<void> check_request(const PackRequest& request) {
    if (request.shard_bytes == 0) return fail(ErrorCode::invalid_argument, "a shard's size must be above 0");
    if (request.shard_name.empty() || request.shard_name.find('/') != std::string::npos ||
        request.shard_name.front() == '.') {
        return fail(ErrorCode::invalid_argument, "\"" + request.shard_name + "\" cannot name a shard");
    }
    std::error_code error;
    const auto status = std::filesystem::status(request.destination, error);
    if (status.type() == std::filesystem::file_type::not_found) return {};
    if (!error && std::filesystem::is_directory(status) && std::filesystem::is_empty(request.destination, error) &&
        !error)
        return {};
    if (error) return fail_errno(error.value(), request.destination);
    return fail(ErrorCode::already_exists,
                request.destination + " is there and is not an empty directory; choose another destination");
}

}  // namespace

Result<PackReport> pack_webdataset(const PackRequest& request, const IndexProgressCallback& progress,
                                   std::stop_token stop) {
    if (auto valid = check_request(request); !valid) return std::unexpected(valid.error());
    DatasetContent content;
    PackReport report;
    auto listing = make_file_objects(request.source)->list({}, stop);
    if (!listing) return std::unexpected(listing.error());
    if (auto indexed = index_raw(std::move(*listing), request.source, content, report.notes); !indexed)
        return std::unexpected(indexed.error());
    std::ranges::sort(content.objects, {}, [&](const auto& object) { return content.name(object); });

    IndexProgress done{.objects_total = content.objects.size()};
    for (const auto& object : content.objects) done.bytes_total += object.size_bytes;
    std::vector<std::uint64_t> order(content.objects.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, mix64);

    std::string destination = request.destination;
    while (destination.size() > 1 && destination.ends_with('/')) destination.pop_back();
    auto work = WorkDirectory::make_beside(destination);
    if (!work) return std::unexpected(work.error());
    Packer packer(request, work->path(), content);
    for (const std::uint64_t index : order) {
        if (stop.stop_requested()) return fail(ErrorCode::cancelled, "packing was cancelled");
        if (auto added = packer.add(index); !added) return std::unexpected(added.error());
        ++done.objects_done;
        done.bytes_done += content.objects[index].size_bytes;
        if (progress) progress(done);
    }
    if (auto finished = packer.finish(); !finished) return std::unexpected(finished.error());
    if (auto kept = work->keep_as(destination); !kept) return std::unexpected(kept.error());
    report.shard_count = packer.shard_count();
    report.sample_count = content.objects.size();
    report.class_count = content.classes.size();
    report.payload_bytes = done.bytes_total;
    return report;
}

}  // namespace larder::cache
