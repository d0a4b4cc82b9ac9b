#include "cache/dataset/index_choices.h"

#include "base/units.h"
#include "cache/remote/remote_place.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using protocol::Format;

Result<void> check_block_goal(const BlockGoal& goal, Format format) {
    if (goal.target != BlockTarget::bytes) return {};
    if (format == Format::raw) {
        return fail(ErrorCode::invalid_argument,
                    "a block of a raw dataset is one file; a block size is for formats whose files hold many samples");
    }
    if (goal.bytes == 0 || goal.bytes > protocol::kBlockBytesMax) {
        return fail(ErrorCode::invalid_argument, "a block is 1 B to " + format_bytes(protocol::kBlockBytesMax) +
                                                     ", not " + format_bytes(goal.bytes));
    }
    return {};
}

}  // namespace

Result<BlockGoal> check_choices(const IndexRequest& request, const DatasetRoot& root, Format format) {
    const std::string format_name(name(format));
    if (!root.only_shard.empty() && format != Format::webdataset) {
        return fail(ErrorCode::invalid_argument, request.definition.url + " is a file; a " + format_name +
                                                     " dataset is a directory: give " + root.place->url().text());
    }
    const BlockGoal& asked = request.definition.block;
    const BlockGoal goal = format == Format::raw ? asked : request.block_of_shards.value_or(asked);
    if (auto valid = check_block_goal(goal, format); !valid) return std::unexpected(valid.error());
    if (request.definition.tokens_per_sample > 0 && format != Format::megatron && format != Format::litdata) {
        return fail(ErrorCode::invalid_argument,
                    "tokens per sample are for megatron and litdata" +
                        (format == Format::larder ? "; for packed files, choose them when packing"
                                                  : "; this dataset is " + format_name));
    }
    if (!request.definition.columns.empty() && format != Format::parquet) {
        return fail(ErrorCode::invalid_argument, "columns are for parquet; this dataset is " + format_name);
    }
    return goal;
}

}  // namespace larder::cache
