#pragma once

// Indexing: from a directory of files or tar shards to a manifest file. `index_dataset` is the one entry point; it
// picks the indexer of the format (index_raw.h, index_webdataset.h, index_mds.h, ...), lets it walk the remote, and
// writes the manifest with block ids carried over from the previous version. It reads names, sizes, times, indexes and
// headers, and payloads only where checksums are asked for (block_checksums.h).
//
// It blocks for as long as the remote takes, so it runs on a worker thread; progress comes from that thread or from
// others, one call at a time. A stop request ends it with ErrorCode::cancelled, soon: within about a thousand files of
// a directory, and at once where it waits for the network. What it leaves behind is the journal, where one was asked
// for.

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

// How samples are grouped into blocks. `bytes` counts for BlockTarget::bytes only.
struct BlockGoal {
    protocol::BlockTarget target = protocol::BlockTarget::sample;
    std::uint64_t bytes = 0;
};

// "sample", "object" or a size such as "8MiB".
Result<BlockGoal> parse_block_goal(std::string_view text);
// The other way: "sample", "object", "8.00 MiB".
std::string format_block_goal(const BlockGoal& goal);

// "raw", "webdataset", "mds", ...: as protocol::name says them.
Result<protocol::Format> parse_format(std::string_view text);

inline constexpr std::uint32_t kTokensPerSampleMax = 1u << 26;

struct IndexRequest {
    std::string url;  // see cache/remote/remote_url.h
    RemoteOptions remote;
    HttpTransfers* transfers = nullptr;      // needed for http(s):// and s3://
    std::optional<protocol::Format> format;  // none: as the files look, see detect_format.h
    BlockGoal block;
    std::optional<BlockGoal> block_of_shards;  // instead, where files hold many samples
    bool checksum = false;                     // read everything, and keep the checksum of each block
    std::uint32_t tokens_per_sample = 0;  // of datasets of tokens: their samples' length; 0: a sample is a document
    std::string manifest_path;            // written atomically
    std::string journal_path;             // see index_journal.h; empty: none. Who gives it removes the file
    std::uint64_t dataset_id = 0;
    std::uint64_t version = 1;
    std::int64_t created_unix_ns = 0;
    const protocol::Manifest* previous = nullptr;    // the version before, to carry block ids over from
    std::function<void(const RemotePlace&)> placed;  // hears of the place before it is asked anything; may be empty
};

struct IndexProgress {
    std::uint64_t objects_done = 0;
    std::uint64_t objects_total = 0;  // 0: not known yet
    std::uint64_t bytes_done = 0;
    std::uint64_t bytes_total = 0;      // 0: not known yet
    std::uint64_t objects_resumed = 0;  // of those done: known from the journal
};
using IndexProgressCallback = std::function<void(const IndexProgress&)>;  // may be empty

struct IndexReport {
    ManifestSummary manifest;
    protocol::Format format = protocol::Format::raw;
    BlockGoal block;                           // as asked for, or a whole object where nothing else is possible
    std::string url;                           // as the manifest has it: what objects' paths are relative to
    std::shared_ptr<const RemotePlace> place;  // for the data plane to read from
    std::shared_ptr<ObjectSource> source;      // what was indexed, for who reads on; ended by the same `stop`
    std::uint64_t objects_resumed = 0;         // known from the journal
    std::vector<std::string> notes;            // what was left out and why, one sentence each, for the user
};

Result<IndexReport> index_dataset(const IndexRequest& request, const IndexProgressCallback& progress,
                                  std::stop_token stop);

}  // namespace larder::cache
