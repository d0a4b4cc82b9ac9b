#include "base/server/row_writer.h"

#include <pthread.h>

#include <utility>

namespace larder {

RowWriter::RowWriter(Commit commit, std::size_t rows_max, std::size_t bytes_max)
    : commit_(std::move(commit)), rows_max_(rows_max), bytes_max_(bytes_max), thread_([this] { run(); }) {
    ::pthread_setname_np(thread_.native_handle(), "rows");
}

RowWriter::~RowWriter() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

void RowWriter::post(std::vector<Row> rows, Done done) {
    {
        const std::lock_guard lock(mutex_);
        posted_.push_back({std::move(rows), std::move(done)});
    }
    wake_.notify_one();
}

void RowWriter::run() {
    for (;;) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !posted_.empty(); });
        if (posted_.empty()) return;
        const std::vector<Posted> group = next_group();
        lock.unlock();
        write(group);
    }
}

std::vector<RowWriter::Posted> RowWriter::next_group() {
    std::vector<Posted> group;
    std::size_t rows = 0;
    std::size_t bytes = 0;
    while (!posted_.empty()) {
        rows += posted_.front().rows.size();
        bytes += bytes_of(posted_.front().rows);
        if (!group.empty() && (rows > rows_max_ || bytes > bytes_max_)) break;
        group.push_back(std::move(posted_.front()));
        posted_.pop_front();
    }
    return group;
}

void RowWriter::write(const std::vector<Posted>& group) {
    std::vector<Row> rows;
    for (const Posted& posted : group) rows.insert(rows.end(), posted.rows.begin(), posted.rows.end());
    const Result<void> group_result = rows.empty() ? Result<void>() : commit_(rows);
    for (const Posted& posted : group) {
        const bool retries_alone = !group_result && group.size() > 1;
        const Result<void> written = !retries_alone        ? group_result
                                     : posted.rows.empty() ? Result<void>()
                                                           : commit_(posted.rows);
        if (posted.done) posted.done(written);
    }
}

}  // namespace larder
