#pragma once

// Indexes Megatron's indexed datasets (cache/protocol/megatron.h): every NAME.bin below a directory, each with its
// NAME.idx, all of one token type. The objects are the .bin files; indexing reads only the .idx files.
//
// A sample is a document, or, with `tokens_per_sample`, a window of that many tokens. Windows are cut from the
// consecutive documents of a .bin. They do not overlap, and tokens left over at the end are dropped. A job that trains
// on a context of N tokens and the next token as target needs N + 1 tokens per sample.
//
// A sample holds nothing but tokens, so that a job can use them without copying.

#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

Result<void> index_megatron(ObjectSource& source, const BlockGoal& goal, std::uint32_t tokens_per_sample,
                            DatasetContent& content, std::vector<std::string>& notes,
                            const IndexProgressCallback& progress, std::stop_token stop,
                            IndexJournal* journal = nullptr);

}  // namespace larder::cache
