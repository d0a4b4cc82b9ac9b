#include "base/server/row_writer.h"

#include <pthread.h>

#include <utility>

namespace larder {

RowWriter::RowWriter(Commit commit) : commit_(std::move(commit)), thread_([this] { run(); }) {
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
        const std::vector<Posted> group = std::exchange(posted_, {});
        lock.unlock();
        write(group);
    }
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
