#pragma once

// Writes rows on a thread of its own, so that no other thread waits for the disk. Everything posted while one
// transaction is written goes into the next (group commit). Posts are written, and answered, in their order.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/server/row_store.h"

namespace larder {

class RowWriter {
public:
    // Called on the writer's thread. Writes all of the rows or, on error, none.
    using Commit = std::function<Result<void>(std::span<const Row> rows)>;
    using Done = std::function<void(Result<void> written)>;
    using MakeRows = std::function<std::vector<Row>()>;

    // A commit gets no post that would make its rows more than `rows_max`, or more than `bytes_max` of keys and texts,
    // except as its only one.
    explicit RowWriter(Commit commit, std::size_t rows_max = std::numeric_limits<std::size_t>::max(),
                       std::size_t bytes_max = std::numeric_limits<std::size_t>::max());
    // Writes everything posted before.
    ~RowWriter();
    RowWriter(const RowWriter&) = delete;
    RowWriter& operator=(const RowWriter&) = delete;

    // Posts rows, from any thread. `done` is called on the writer's thread; without rows, it is called once all earlier
    // posts are answered. The rows of one post are written together; if a group fails, each of its posts is retried
    // alone.
    void post(std::vector<Row> rows, Done done);
    // Posts the rows that `make` returns. It is called once, on the writer's thread: the caller does not wait for it.
    void post_made(MakeRows make, Done done);

private:
    struct Posted {
        std::vector<Row> rows;
        MakeRows make;  // empty: the rows are made
        Done done;
    };

    void post(Posted posted);
    void run();
    // Takes what was posted. Waits if there is nothing to write. Returns false if there will be nothing any more.
    bool take_posted();
    std::vector<Posted> next_group();
    void write(const std::vector<Posted>& group);

    Commit commit_;
    const std::size_t rows_max_;
    const std::size_t bytes_max_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Posted> posted_;
    bool stopping_ = false;
    std::deque<Posted> taken_;  // to be written; of the writer's thread
    std::thread thread_;
};

}  // namespace larder
