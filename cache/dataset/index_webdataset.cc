#include "cache/dataset/index_webdataset.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "cache/dataset/shard_index.h"

namespace larder::cache {
namespace {

constexpr std::size_t kThreadsMax = 8;
constexpr std::array<std::string_view, 8> kCompressedEndings{".tar.gz", ".tgz", ".tar.bz2", ".tbz2",
                                                             ".tar.xz", ".txz", ".tar.zst", ".tzst"};

struct ShardList {
    std::vector<std::string> paths;  // relative to the root, sorted
    std::uint64_t other_files = 0;
    std::uint64_t hidden = 0;
};

Result<ShardList> list_shards(const std::string& root) {
    ShardList list;
    std::error_code error;
    auto at = std::filesystem::recursive_directory_iterator(root, error);
    for (; !error && at != std::filesystem::recursive_directory_iterator(); at.increment(error)) {
        const std::string name = at->path().filename().string();
        if (name.front() == '.') {
            ++list.hidden;
            at.disable_recursion_pending();
            continue;
        }
        std::error_code ignored;
        if (!at->is_regular_file(ignored)) continue;
        if (is_compressed_shard_name(name)) {
            return fail(ErrorCode::unsupported, at->path().string() +
                                                    " is a compressed tar, which is not supported, because its samples "
                                                    "cannot be read on their own: unpack it");
        }
        if (is_shard_name(name)) {
            list.paths.push_back(at->path().string().substr(root.size() + (root.ends_with('/') ? 0 : 1)));
        } else {
            ++list.other_files;
        }
    }
    if (error) return fail_errno(error.value(), "walk of " + root);
    std::ranges::sort(list.paths);
    return list;
}

// The shards' indexes, made by a few threads that each take the next shard not yet taken.
class Run {
public:
    Run(const std::string& root, std::span<const std::string> paths, const BlockGoal& goal,
        const IndexProgressCallback& progress, std::stop_token stop)
        : root_(root), paths_(paths), goal_(goal), progress_(progress), stop_(std::move(stop)), shards_(paths.size()) {}

    Result<std::vector<ShardIndex>> finish() {
        {
            std::vector<std::jthread> threads;
            for (std::size_t i = 1; i < std::min(kThreadsMax, paths_.size()); ++i)
                threads.emplace_back([this] { work(); });
            work();
        }
        if (error_) return std::unexpected(*error_);
        return std::move(shards_);
    }

private:
    void work() {
        while (!failed_.load()) {
            const std::size_t shard = next_.fetch_add(1);
            if (shard >= paths_.size()) return;
            std::uint64_t reported = 0;
            auto index = index_shard(root_ + "/" + paths_[shard], goal_, [&](std::uint64_t offset) {
                report(0, offset - reported);
                reported = offset;
                return !stop_.stop_requested() && !failed_.load();
            });
            if (!index) {
                stop_with(shard, index.error());
                return;
            }
            report(1, index->size_bytes - reported);
            shards_[shard] = std::move(*index);
        }
    }

    // Keeps the error of the first shard in the order of paths, so that equal input gives equal errors where it can;
    // one that another error cut short has nothing to say.
    void stop_with(std::size_t shard, const Error& error) {
        const std::scoped_lock lock(mutex_);
        const bool says_less = error_ && (error.code == ErrorCode::cancelled || shard > error_shard_);
        if (!says_less) {
            error_ = error;
            error_shard_ = shard;
        }
        failed_.store(true);
    }

    void report(std::uint64_t objects, std::uint64_t bytes) {
        const std::scoped_lock lock(mutex_);
        done_.objects_done += objects;
        done_.bytes_done += bytes;
        done_.objects_total = paths_.size();
        if (progress_) progress_(done_);
    }

    const std::string& root_;
    std::span<const std::string> paths_;
    const BlockGoal& goal_;
    const IndexProgressCallback& progress_;
    std::stop_token stop_;
    std::vector<ShardIndex> shards_;
    std::atomic<std::size_t> next_{0};
    std::atomic<bool> failed_{false};
    std::mutex mutex_;  // over what follows
    IndexProgress done_;
    std::optional<Error> error_;
    std::size_t error_shard_ = 0;
};

// Appends one shard, its memory freed on the way.
void append(DatasetContent& content, const std::string& path, ShardIndex shard) {
    content.add_object(path, shard.size_bytes, shard.mtime_ns, protocol::kNoLabel);
    content.objects.back().first_block = static_cast<std::uint32_t>(content.blocks.size());
    content.objects.back().block_count = static_cast<std::uint32_t>(shard.blocks.size());
    const auto first_sample = static_cast<std::uint32_t>(content.samples.size());
    for (auto block : shard.blocks) {
        block.first_sample += first_sample;
        content.blocks.push_back(block);
    }
    content.samples.insert(content.samples.end(), shard.samples.begin(), shard.samples.end());
}

}  // namespace

bool is_shard_name(std::string_view name) {
    return name.ends_with(".tar");
}

bool is_compressed_shard_name(std::string_view name) {
    return std::ranges::any_of(kCompressedEndings, [&](std::string_view ending) { return name.ends_with(ending); });
}

Result<void> index_webdataset(const std::string& root, const std::string& only_shard, const BlockGoal& goal,
                              DatasetContent& content, std::vector<std::string>& notes,
                              const IndexProgressCallback& progress, std::stop_token stop) {
    auto list = only_shard.empty() ? list_shards(root) : Result<ShardList>(ShardList{.paths = {only_shard}});
    if (!list) return std::unexpected(list.error());
    if (list->paths.empty()) return fail(ErrorCode::invalid_argument, root + " has no .tar files");
    auto shards = Run(root, list->paths, goal, progress, std::move(stop)).finish();
    if (!shards) return std::unexpected(shards.error());

    std::uint64_t without_samples = 0;
    std::uint64_t not_files = 0;
    std::uint64_t without_key = 0;
    for (std::size_t i = 0; i < shards->size(); ++i) {
        ShardIndex& shard = (*shards)[i];
        not_files += shard.members_not_files;
        without_key += shard.members_without_key;
        without_samples += shard.blocks.empty();
        if (!shard.blocks.empty()) append(content, list->paths[i], std::move(shard));
    }
    const auto add_note = [&](std::uint64_t count, const char* what) {
        if (count > 0) notes.push_back("left out " + std::to_string(count) + " " + what);
    };
    add_note(list->hidden, "file(s) or directories whose names begin with a dot");
    add_note(list->other_files, "file(s) that are not .tar");
    add_note(without_samples, "tar(s) without samples");
    add_note(not_files, "tar member(s) that are links or special files");
    add_note(without_key, "tar member(s) whose names give no key and field");
    if (content.objects.empty()) {
        std::string why = root + " has no samples";
        for (const auto& note : notes) why += "; " + note;
        return fail(ErrorCode::invalid_argument, why);
    }
    return {};
}

}  // namespace larder::cache
