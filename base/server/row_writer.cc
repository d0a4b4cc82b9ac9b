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
    post(Posted{.rows = std::move(rows), .make = {}, .done = std::move(done)});
}

void RowWriter::post_made(MakeRows make, Done done) {
    post(Posted{.rows = {}, .make = std::move(make), .done = std::move(done)});
}

void RowWriter::post(Posted posted) {
    {
        const std::lock_guard lock(mutex_);
        posted_.push_back(std::move(posted));
    }
    wake_.notify_one();
}

void RowWriter::run() {
    while (take_posted()) write(next_group());
}

bool RowWriter::take_posted() {
    std::unique_lock lock(mutex_);
    if (taken_.empty()) wake_.wait(lock, [this] { return stopping_ || !posted_.empty(); });
    for (; !posted_.empty(); posted_.pop_front()) taken_.push_back(std::move(posted_.front()));
    return !taken_.empty();
}

std::vector<RowWriter::Posted> RowWriter::next_group() {
    std::vector<Posted> group;
    std::size_t rows = 0;
    std::size_t bytes = 0;
    for (; !taken_.empty(); taken_.pop_front()) {
        Posted& next = taken_.front();
        if (next.make) next.rows = std::exchange(next.make, {})();
        rows += next.rows.size();
        bytes += bytes_of(next.rows);
        if (!group.empty() && (rows > rows_max_ || bytes > bytes_max_)) break;
        group.push_back(std::move(next));
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
