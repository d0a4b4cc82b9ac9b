#pragma once

// Megatron's indexed datasets (cache/protocol/megatron.h): every NAME.bin below a directory, each with its NAME.idx,
// all of one token type. The objects are the .bin files; of them no byte is read here. A sample is a document, or, with
// `tokens_per_sample`, a window of so many tokens: the documents of a .bin, one after the other, cut every
// `tokens_per_sample` tokens; what is left at its end is left out. Windows do not overlap: for a context of N tokens
// and the next one as target choose N + 1.
//
// A sample is bare tokens, so that a job reads them where they lie.

#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/object_source.h"

namespace larder::cache {

Result<void> index_megatron(ObjectSource& source, const BlockGoal& goal, std::uint32_t tokens_per_sample,
                            DatasetContent& content, std::vector<std::string>& notes,
                            const IndexProgressCallback& progress, std::stop_token stop,
                            IndexJournal* journal = nullptr);

}  // namespace larder::cache
