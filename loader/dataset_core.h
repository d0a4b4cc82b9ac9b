#pragma once

// Reads samples by index: the part of Dataset (loader/larder.h) that is also used inside Larder. A DatasetCore belongs
// to one thread at a time, and so do its batches.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "loader/batch.h"
#include "loader/block_client.h"
#include "loader/larder.h"

namespace larder::detail {

struct DatasetChoices {
    std::uint64_t version = 0;  // of the dataset; 0: the newest
    // Samples are read in no random order, so the daemon chooses the blocks that it caches by a hash.
    bool sequential = false;
    // Takes more than ConnectOptions::memory_budget_bytes if the largest sample needs more.
    bool may_exceed_budget = false;
};

class DatasetCore {
public:
    static Result<std::unique_ptr<DatasetCore>> open(ConnectOptions options, const DatasetChoices& choices);
    ~DatasetCore() { client_->close(); }

    const protocol::Manifest& manifest() const { return client_->manifest(); }
    // See Dataset::fetch.
    Result<Batch> fetch(std::span<const std::uint64_t> indices);
    std::uint64_t slot_bytes() const { return client_->slot_bytes(); }
    std::uint64_t slot_bytes_free() const { return client_->slot_bytes() - client_->slot_bytes_occupied(); }
    void set_reconnect_timeout_ms(std::int64_t timeout_ms) { client_->set_reconnect_timeout_ms(timeout_ms); }
    // Serves the session while nothing is fetched: the daemon takes back memory that no batch holds.
    Result<void> tick() { return client_->tick(); }
    void set_training_loop(std::shared_ptr<const TrainingLoopWait> loop,
                           std::shared_ptr<const protocol::TakeLog> takes) {
        client_->set_training_loop(std::move(loop), std::move(takes));
    }
    const LoaderStatistics& statistics() const { return client_->statistics(); }

private:
    DatasetCore(ConnectOptions options, std::shared_ptr<BlockClient> client)
        : options_(std::move(options)), client_(std::move(client)) {}

    ConnectOptions options_;
    std::shared_ptr<BlockClient> client_;
    std::vector<BatchSample> samples_;  // of the fetch in progress
};

}  // namespace larder::detail
