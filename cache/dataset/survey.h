#pragma once

// A survey reports what adding a dataset would find, without adding the dataset: the format, the objects by suffix, and
// odd objects. A survey lists the remote and reads at most one index.json.

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"

namespace larder::cache {

struct DatasetSurvey {
    static constexpr std::size_t kNamesMax = 20;

    struct Suffix {
        std::string suffix;  // ".tar"; empty: names without one
        std::uint64_t objects = 0;
        std::uint64_t bytes = 0;
    };

    std::string url;
    protocol::Format format = protocol::Format::raw;
    std::uint64_t objects = 0;  // without empty objects
    std::uint64_t bytes = 0;
    std::uint64_t top_directories = 0;  // classes of a raw dataset
    std::uint64_t empty_objects = 0;
    std::vector<Suffix> suffixes;        // the most frequent first; at most kNamesMax
    std::uint64_t odd_objects = 0;       // see MixedListing::odd_paths
    std::vector<std::string> odd_paths;  // paths of odd objects; at most kNamesMax
    std::vector<std::string> notes;      // for the user, one sentence each
};

Result<DatasetSurvey> survey_dataset(const IndexRequest& request, const IndexProgressCallback& progress,
                                     std::stop_token stop);

}  // namespace larder::cache
