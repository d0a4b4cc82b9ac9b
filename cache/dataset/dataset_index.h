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
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/protocol/manifest.h"
#include "cache/remote/remote_options.h"

namespace larder::cache {

class HttpTransfers;
class ObjectSource;
class RemotePlace;

// How samples are grouped into blocks. `bytes` is used by BlockTarget::bytes only.
struct BlockGoal {
    protocol::BlockTarget target = protocol::BlockTarget::sample;
    std::uint64_t bytes = 0;
};

// Parses "sample", "object" or a size such as "8MiB".
Result<BlockGoal> parse_block_goal(std::string_view text);
// Returns "sample", "object" or a size such as "8.00 MiB".
std::string format_block_goal(const BlockGoal& goal);

// Parses "raw", "webdataset", "mds", ...: the names that protocol::name returns.
Result<protocol::Format> parse_format(std::string_view text);

inline constexpr std::uint32_t kTokensPerSampleMax = 1u << 26;

struct IndexRequest {
    std::string url;  // see cache/remote/remote_url.h
    RemoteOptions remote;
    HttpTransfers* transfers = nullptr;      // needed for http(s):// and s3://
    std::optional<protocol::Format> format;  // none: detected, see detect_format.h
    BlockGoal block;
    std::optional<BlockGoal> block_of_shards;  // replaces `block` in formats whose files hold many samples
    bool checksum = false;                     // read all payloads and store the checksum of each block
    std::uint32_t tokens_per_sample = 0;       // sample length in datasets of tokens; 0: a sample is a document
    std::string manifest_path;                 // written atomically
    std::string journal_path;                  // see index_journal.h; empty: no journal. The caller removes the file
    std::uint64_t dataset_id = 0;
    std::uint64_t version = 1;
    std::int64_t created_unix_ns = 0;
    const protocol::Manifest* previous = nullptr;    // the previous version, whose block ids are carried over
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
    protocol::Format format = protocol::Format::raw;
    BlockGoal block;                           // as requested, or `object` if the format allows nothing else
    std::string url;                           // the manifest's URL; the paths of objects are relative to it
    std::shared_ptr<const RemotePlace> place;  // the data plane reads from it
    std::shared_ptr<ObjectSource> source;      // the indexed source, for further reads; the same `stop` ends them
    std::uint64_t objects_resumed = 0;         // objects taken from the journal
    std::vector<std::string> notes;            // for the user: files left out and why, one sentence each
};

Result<IndexReport> index_dataset(const IndexRequest& request, const IndexProgressCallback& progress,
                                  std::stop_token stop);

}  // namespace larder::cache
