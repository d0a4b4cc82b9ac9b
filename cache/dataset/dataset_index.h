#pragma once

// Indexing turns a directory of files or tar shards into a manifest file. `index_dataset` is the one entry point. It
// picks the indexer of the format (index_raw.h, index_webdataset.h, index_mds.h, ...), lets the indexer walk the
// remote, and writes the manifest with block ids carried over from the previous version. Indexing reads names, sizes,
// times, indexes and headers; it reads payloads only if checksums are requested (block_checksums.h).
//
// `index_dataset` blocks for as long as the remote takes, so call it on a worker thread. It reports progress from that
// thread or from others, one call at a time. A stop request ends indexing with ErrorCode::cancelled: within about a
// thousand files of a directory, and at once during a network wait. The journal, if one was requested, is kept.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/dataset_definition.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {

class HttpTransfers;
class ObjectSource;
class RemotePlace;

// Parses "sample", "object" or a size such as "8MiB".
Result<BlockGoal> parse_block_goal(std::string_view text);
// Returns "sample", "object" or a size such as "8.00 MiB".
std::string format_block_goal(const BlockGoal& goal);

// Parses the names of columns, separated by commas: "image, label". So no name can have a comma.
Result<std::vector<std::string>> parse_columns(std::string_view text);
// Returns "image,label".
std::string format_columns(std::span<const std::string> columns);

// Parses "raw", "webdataset", "mds", ...: the names that protocol::name returns.
Result<protocol::Format> parse_format(std::string_view text);

inline constexpr std::uint32_t kTokensPerSampleMax = 1u << 26;

struct IndexRequest {
    DatasetDefinition definition;
    HttpTransfers* transfers = nullptr;        // needed for all but file://
    std::optional<BlockGoal> block_of_shards;  // replaces the block goal in formats whose files hold many samples
    ManifestVersion manifest;                  // its file is written atomically; block ids of `previous` carry over
    std::string journal_path;                  // see index_journal.h; empty: no journal. The caller removes the file
    std::function<void(const RemotePlace&)> placed;  // called with the place before its first use; may be empty
};

struct IndexProgress {
    std::uint64_t objects_done = 0;
    std::uint64_t objects_total = 0;  // 0: unknown
    std::uint64_t bytes_done = 0;
    std::uint64_t bytes_total = 0;      // 0: unknown
    std::uint64_t objects_resumed = 0;  // part of objects_done: objects taken from the journal
};
using IndexProgressCallback = std::function<void(const IndexProgress&)>;  // may be empty

struct IndexReport {
    ManifestSummary manifest;
    // As requested, except: the format is set; the block goal is `object` if the format allows nothing else; the URL is
    // the manifest's, to which the paths of objects are relative.
    DatasetDefinition definition;
    std::shared_ptr<const RemotePlace> place;  // the data plane reads from it
    std::shared_ptr<ObjectSource> source;      // the indexed source, for further reads; the same `stop` ends them
    std::uint64_t objects_resumed = 0;         // objects taken from the journal
    std::vector<std::string> notes;            // for the user: files left out and why, one sentence each
};

Result<IndexReport> index_dataset(const IndexRequest& request, const IndexProgressCallback& progress,
                                  std::stop_token stop);

}  // namespace larder::cache
