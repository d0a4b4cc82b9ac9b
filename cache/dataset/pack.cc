#include "cache/dataset/pack.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "cache/dataset/pack_shards.h"
#include "cache/dataset/pack_source.h"

namespace larder::cache {
namespace {

// A temporary directory. The destructor removes it unless `rename_to` has renamed it.
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

    Result<void> rename_to(const std::string& destination) {
        if (auto synced = sync_directory(path_); !synced) return synced;
        if (::rename(path_.c_str(), destination.c_str()) != 0) return fail_errno(errno, "rename to " + destination);
        path_.clear();
        return {};
    }

private:
    explicit WorkDirectory(std::string path) : path_(std::move(path)) {}
    std::string path_;
};

Result<void> check_request(const PackRequest& request) {
    if (request.format != protocol::Format::webdataset && request.format != protocol::Format::larder) {
        return fail(ErrorCode::invalid_argument,
                    "datasets are packed as webdataset or larder, not as " + std::string(name(request.format)));
    }
    if (request.shard_bytes == 0) return fail(ErrorCode::invalid_argument, "a shard's size must be above 0");
    if (request.shard_name.empty() || request.shard_name.find('/') != std::string::npos ||
        request.shard_name.front() == '.') {
        return fail(ErrorCode::invalid_argument, "\"" + request.shard_name + "\" is not a valid shard name");
    }
    std::error_code error;
    const auto status = std::filesystem::status(request.destination, error);
    if (status.type() == std::filesystem::file_type::not_found) return {};
    if (!error && std::filesystem::is_directory(status) && std::filesystem::is_empty(request.destination, error) &&
        !error)
        return {};
    if (error) return fail_errno(error.value(), request.destination);
    return fail(ErrorCode::already_exists,
                request.destination + " exists and is not an empty directory; choose another destination");
}

}  // namespace

Result<PackReport> pack_dataset(const PackRequest& request, const IndexProgressCallback& progress,
                                std::stop_token stop) {
    if (auto valid = check_request(request); !valid) return std::unexpected(valid.error());
    std::string destination = request.destination;
    while (destination.size() > 1 && destination.ends_with('/')) destination.pop_back();
    auto work = WorkDirectory::make_beside(destination);
    if (!work) return std::unexpected(work.error());
    const std::string manifest_path = work->path() + "/manifest";
    auto source = PackSource::open(request, manifest_path, stop);
    if (!source) return std::unexpected(source.error());
    if (::unlink(manifest_path.c_str()) != 0) return fail_errno(errno, "remove " + manifest_path);
    const protocol::Manifest& manifest = source->manifest();
    auto shards = make_pack_shards(request, work->path(), manifest);
    if (!shards) return std::unexpected(shards.error());

    IndexProgress done{.objects_total = manifest.sample_count(), .bytes_total = manifest.total_bytes()};
    auto packed = source->for_each_sample([&](const SourceSample& sample) -> Result<void> {
        if (stop.stop_requested()) return fail(ErrorCode::cancelled, "packing was cancelled");
        if (auto added = (*shards)->add(sample); !added) return added;
        ++done.objects_done;
        done.bytes_done += sample.block_bytes_read;
        if (progress) progress(done);
        return {};
    });
    if (!packed && stop.stop_requested()) return fail(ErrorCode::cancelled, "packing was cancelled");
    if (!packed) return std::unexpected(packed.error());
    if (auto finished = (*shards)->finish(); !finished) return std::unexpected(finished.error());
    if (auto renamed = work->rename_to(destination); !renamed) return std::unexpected(renamed.error());
    return PackReport{.shard_count = (*shards)->shard_count(),
                      .sample_count = manifest.sample_count(),
                      .class_count = manifest.header().class_count,
                      .payload_bytes = manifest.total_bytes(),
                      .source_format = *source->report().definition.format,
                      .notes = source->report().notes};
}

}  // namespace larder::cache
