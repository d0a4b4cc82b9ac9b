#pragma once

// The datasets of a node as they are kept on disk, one directory each: DIRECTORY/NAME/dataset.json says what the
// dataset is, DIRECTORY/NAME/manifest-VERSION is the index of one version (cache/protocol/manifest.h). dataset.json is
// replaced whole, so a dataset is there or not, with its old record or its new one, whenever the power goes. Beside
// them lies the journal of an indexing that was stopped (cache/dataset/index_journal.h), kept for a week for when it
// goes on.
//
// All calls block on the disk. The catalog keeps nothing in memory: who uses it keeps the records, and lets one thread
// at a time change a dataset.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/control/access.h"
#include "cache/dataset/dataset_index.h"
#include "cache/protocol/manifest.h"
#include "cache/remote/remote_options.h"
#include "cache/store.h"
#include "cache/store/compression.h"

namespace larder::cache {

inline constexpr std::size_t kDatasetNameBytesMax = 128;
inline constexpr std::size_t kVersionsKept = 2;  // the newest, whoever uses them

struct DatasetRecord {
    std::string name;
    std::string url;
    RemoteOptions remote;
    protocol::Format format = protocol::Format::raw;
    BlockGoal block;
    std::uint32_t tokens_per_sample = 0;  // 0: none was wished
    Compression compression;
    bool checksum = false;         // whoever indexes it keeps the checksum of each block
    std::uint64_t dataset_id = 0;  // random, of this dataset for ever; another one of that name has another
    Access access;
    Quota quota;
    bool quota_held = false;              // somebody set it by hand: an allocator plans around it
    std::vector<std::uint64_t> versions;  // ascending
};

// 1 to 128 of A-Z a-z 0-9 . _ -, not beginning with a dot or a dash.
Result<void> check_dataset_name(std::string_view name);

// As parse_block_goal reads it, exact to the byte.
std::string block_goal_text(const BlockGoal& goal);

// "00f3...", 16 digits.
std::string format_dataset_id(std::uint64_t dataset_id);
std::uint64_t random_dataset_id();

class Catalog {
public:
    explicit Catalog(std::string directory) : directory_(std::move(directory)) {}

    struct Loaded {
        std::vector<DatasetRecord> records;  // by name
        std::vector<std::string> removed;    // left-overs of additions and indexings that never ended
        std::vector<std::string> stopped;    // names of additions whose journals are there: they can go on
    };
    // Makes the directory if it is missing. A record that cannot be understood is an error that names the file.
    Result<Loaded> load();

    // Makes a new dataset's directory, for its first manifest. Until `save` it counts as a left-over.
    Result<void> create(const std::string& name);
    // The journals of its versions are of no more use then, and go.
    Result<void> save(const DatasetRecord& record);
    // An addition that did not end: all of it goes but its journal. False: that is left.
    Result<bool> abandon(const std::string& name);
    Result<void> remove(const std::string& name);
    Result<void> remove_manifest(const std::string& name, std::uint64_t version);

    std::string manifest_path(const std::string& name, std::uint64_t version) const;

private:
    Result<DatasetRecord> load_record(const std::string& name) const;
    Result<void> remove_left_overs(const DatasetRecord& record, std::vector<std::string>& removed);

    std::string directory_;
};

}  // namespace larder::cache
