#pragma once

// The datasets of a node on disk, one directory each: DIRECTORY/NAME/dataset.json describes the dataset, and
// DIRECTORY/NAME/manifest-VERSION is the index of one version (cache/protocol/manifest.h). dataset.json is replaced
// atomically: after a power failure the dataset has its old record, its new record, or does not exist. The same
// directory holds the journal of an interrupted indexing (cache/dataset/index_journal.h), which is kept for a week so
// that the indexing can resume.
//
// All calls block on the disk. The catalog holds nothing in memory: its user keeps the records, and ensures that only
// one thread at a time changes a dataset.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/control/dataset_access.h"
#include "cache/dataset_definition.h"
#include "cache/store/store.h"

namespace larder::cache {

inline constexpr std::size_t kDatasetNameBytesMax = 128;
inline constexpr std::size_t kVersionsKept = 2;  // the newest versions, kept even if unused

struct DatasetRecord {
    DatasetDefinition definition;  // its format is set once the dataset is indexed
    std::uint64_t dataset_id = 0;  // random, never changes; a later dataset of this name gets another
    DatasetAccess access;
    Quota quota;
    bool quota_held = false;              // the quota was set by hand: the allocator must not change it
    std::vector<std::uint64_t> versions;  // ascending
};

// A name is 1 to 128 characters of A-Z a-z 0-9 . _ - and does not begin with a dot or a dash.
Result<void> check_dataset_name(std::string_view name);

// The text that parse_block_goal reads back, exact to the byte.
std::string block_goal_text(const BlockGoal& goal);

// 16 hexadecimal digits, such as "00f3...".
std::string format_dataset_id(std::uint64_t dataset_id);
std::uint64_t random_dataset_id();

class Catalog {
public:
    explicit Catalog(std::string directory) : directory_(std::move(directory)) {}

    struct Damaged {
        std::string name;
        Error reason;  // names the file
    };
    struct Loaded {
        std::vector<DatasetRecord> records;  // by name
        std::vector<Damaged> damaged;      // datasets whose record cannot be read; all their files are left as they are
        std::vector<std::string> removed;  // removed files of unfinished additions and indexings
        std::vector<std::string> stopped;  // names of unfinished additions that have a journal and can resume
        std::vector<Error> problems;       // remains that could not be removed
    };
    // Makes the directory if it is missing.
    Result<Loaded> load();

    // Makes a new dataset's directory, for its first manifest. Until `save`, `load` treats the directory as unfinished.
    Result<void> create(const std::string& name);
    // Writes the record, then removes the journals of its versions, which are no longer needed.
    Result<void> save(const DatasetRecord& record);
    // Removes all files of an unfinished addition except its journal. False if a journal is left.
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
