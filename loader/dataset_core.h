#pragma once

// Implements Dataset: fetches the blocks of all requested samples at once, and hands the samples out as one batch.

#include <cstdint>
#include <memory>
#include <span>

#include "loader/block_client.h"
#include "loader/larder.h"

namespace larder::detail {

class DatasetCore {
public:
    static Result<std::unique_ptr<DatasetCore>> open(ConnectOptions options);
    ~DatasetCore() { client_->close(); }

    const protocol::Manifest& manifest() const { return client_->manifest(); }
    Result<Batch> fetch(std::span<const std::uint64_t> indices);
    void set_training_loop(std::shared_ptr<const TrainingLoopWait> loop) {
        client_->set_training_loop(std::move(loop));
    }
    const LoaderStatistics& statistics() const { return client_->statistics(); }

private:
    DatasetCore(ConnectOptions options, std::shared_ptr<BlockClient> client)
        : options_(std::move(options)), client_(std::move(client)) {}

    Result<void> await(std::span<const std::uint32_t> tags);

    ConnectOptions options_;
    std::shared_ptr<BlockClient> client_;
};

}  // namespace larder::detail
