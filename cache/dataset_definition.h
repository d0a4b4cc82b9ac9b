#pragma once

// Defines a dataset: where its objects are, how they divide into blocks, and how the node keeps the blocks. The config,
// the HTTP API, dataset.json, the indexer and the data plane all carry this one struct. Other structs add to it: what
// else a user asks for (control/dataset_request.h), what else a node stores (DatasetRecord in control/catalog.h), and
// what one indexing needs (IndexRequest in dataset/dataset_index.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/protocol/manifest.h"
#include "cache/remote/remote_options.h"
#include "cache/store/compression.h"

namespace larder::cache {

// The rule that groups samples into blocks. `bytes` is used by BlockTarget::bytes only.
struct BlockGoal {
    protocol::BlockTarget target = protocol::BlockTarget::sample;
    std::uint64_t bytes = 0;
};

struct DatasetDefinition {
    std::string name;
    std::string url;  // see cache/remote/remote_url.h
    RemoteOptions remote;
    std::optional<protocol::Format> format;  // none: indexing detects it, see detect_format.h
    BlockGoal block;
    std::uint32_t tokens_per_sample = 0;  // sample length in datasets of tokens; 0: a sample is a document
    std::vector<std::string> columns;     // of Parquet: the columns that are fetched; empty: all
    bool checksum = false;                // indexing reads all payloads and stores the checksum of each block
    Compression compression;
};

}  // namespace larder::cache
