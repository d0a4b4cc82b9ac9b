#include "base/server/etcd_rows.h"

#include <boost/json.hpp>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/server/json_text.h"

namespace larder {
namespace {

namespace json = boost::json;

// etcd takes requests of 1.5 MiB by default, and base64 adds a third.
constexpr std::size_t kJournalBytesMax = 1u << 20;
constexpr std::size_t kRowsOfPage = 1000;
constexpr std::int64_t kRetryPause_ns = 100'000'000;

json::array json_of(std::span<const Row> rows) {
    json::array array;
    array.reserve(rows.size());
    for (const Row& row : rows) {
        array.push_back(json::array{row.key, row.text ? json::value(*row.text) : json::value(nullptr)});
    }
    return array;
}

Result<std::vector<Row>> rows_of_journal(std::string_view text) {
    try {
        std::vector<Row> rows;
        const json::value journal = json::parse(text);
        for (const json::value& entry : journal.as_array()) {
            Row row{std::string(entry.at(0).as_string()), std::nullopt};
            if (!entry.at(1).is_null()) row.text = std::string(entry.at(1).as_string());
            rows.push_back(std::move(row));
        }
        return rows;
    } catch (const std::exception& error) {
        return fail(ErrorCode::corrupt, std::string("its journal cannot be read: ") + error.what());
    }
}

class EtcdRows final : public RowStore {
public:
    EtcdRows(const EtcdOptions& etcd, EtcdFence fence, std::string_view noun)
        : client_(etcd),
          fence_(std::move(fence)),
          noun_(noun),
          rows_(noun_ + "/"),
          journal_("journal/" + noun_),
          where_("etcd under " + etcd.prefix) {}

    Result<void> load(const RowStoreOptions& options);
    bool is_new() const override { return is_new_; }
    Result<void> write(std::span<const Row> rows) override;

private:
    std::string sealed_key(std::string_view key) const { return rows_ + std::string(key); }
    Result<void> commit(std::span<const Row> values);
    Result<void> carry_out(std::span<const Row> rows);
    Result<void> finish_journal();
    Result<void> take_row(const EtcdKey& stored, const RowStoreOptions& options) const;

    EtcdClient client_;
    EtcdFence fence_;
    std::string noun_;
    std::string rows_;
    std::string journal_;
    std::string where_;
    bool is_new_ = false;
    std::vector<Row> unfinished_;  // of a journal that is written, but not carried out
};

// Writes values under their whole keys, in one transaction.
Result<void> EtcdRows::commit(std::span<const Row> values) {
    const std::string what = "write the " + noun_ + " in " + where_;
    for (;;) {
        const auto written = client_.write(values, fence_.key, fence_.create_revision);
        if (written && *written) return {};
        if (written) return fail(ErrorCode::unavailable, what + ": another process leads now");
        const ErrorCode code = written.error().code;
        if (code != ErrorCode::unavailable && code != ErrorCode::timeout) {
            return std::unexpected(written.error().within(what));
        }
        if (!fence_.is_held()) return fail(ErrorCode::unavailable, what + ": this process no longer leads");
        sleep_ns(kRetryPause_ns);
    }
}

Result<void> EtcdRows::carry_out(std::span<const Row> rows) {
    std::vector<Row> values;
    values.reserve(EtcdClient::kRowsMax);
    for (std::size_t first = 0; first < rows.size(); first += EtcdClient::kRowsMax - 1) {
        const std::size_t count = std::min(rows.size() - first, EtcdClient::kRowsMax - 1);
        values.clear();
        for (const Row& row : rows.subspan(first, count)) {
            values.push_back({sealed_key(row.key), std::nullopt});
            if (row.text) values.back().text = seal_row(row.key, *row.text);
        }
        // The last part removes the journal.
        if (first + count == rows.size()) values.push_back({journal_, std::nullopt});
        if (auto written = commit(values); !written) return written;
    }
    return {};
}

Result<void> EtcdRows::finish_journal() {
    if (unfinished_.empty()) return {};
    if (auto done = carry_out(unfinished_); !done) return done;
    unfinished_.clear();
    return {};
}

Result<void> EtcdRows::write(std::span<const Row> rows) {
    if (auto finished = finish_journal(); !finished) return finished;
    if (rows.size() < EtcdClient::kRowsMax) return carry_out(rows);
    const std::string text = json_text(json_of(rows));
    if (text.size() > kJournalBytesMax) {
        return fail(ErrorCode::no_space, "write the " + noun_ + " in " + where_ + ": a change of " +
                                             std::to_string(text.size()) + " bytes is more than etcd takes");
    }
    const Row journal{journal_, seal_row(journal_, text)};
    if (auto written = commit(std::span(&journal, 1)); !written) return written;
    unfinished_.assign(rows.begin(), rows.end());
    return finish_journal();
}

Result<void> EtcdRows::take_row(const EtcdKey& stored, const RowStoreOptions& options) const {
    const std::string_view key = std::string_view(stored.key).substr(rows_.size());
    const auto text = open_row(key, stored.value);
    if (!text) return fail(ErrorCode::corrupt, "row \"" + std::string(key) + "\" does not match its CRC");
    if (key == kVersionKey) return {};
    return options.take(key, *text);
}

Result<void> EtcdRows::load(const RowStoreOptions& options) {
    const std::string what = "read the " + noun_ + " in " + where_;
    const auto journal = client_.get(journal_);
    if (!journal) return std::unexpected(journal.error().within(what));
    const auto version = client_.get(sealed_key(kVersionKey));
    if (!version) return std::unexpected(version.error().within(what));
    is_new_ = !*version;
    // The version is read first: rows of a newer version may mean anything.
    if (*version) {
        const auto text = open_row(kVersionKey, (*version)->value);
        if (!text) return fail(ErrorCode::corrupt, what + ": the version does not match its CRC");
        if (auto checked = check_version(*text, options, where_); !checked) return checked;
    }
    if (*journal) {
        const auto text = open_row(journal_, (*journal)->value);
        if (!text) return fail(ErrorCode::corrupt, what + ": the journal does not match its CRC");
        auto rows = rows_of_journal(*text);
        if (!rows) return std::unexpected(rows.error().within(what));
        unfinished_ = std::move(*rows);
        if (auto finished = finish_journal(); !finished) return finished;
    }
    std::string after;
    for (;;) {
        const auto page = client_.list(rows_, after, kRowsOfPage);
        if (!page) return std::unexpected(page.error().within(what));
        for (const EtcdKey& stored : *page) {
            if (auto taken = take_row(stored, options); !taken) return std::unexpected(taken.error().within(what));
        }
        if (page->size() < kRowsOfPage) break;
        after = page->back().key;
    }
    const Row now = version_row(options.version);
    return write(std::span(&now, 1));
}

}  // namespace

Result<std::unique_ptr<RowStore>> open_etcd_rows(const EtcdOptions& etcd, EtcdFence fence,
                                                 const RowStoreOptions& options) {
    auto store = std::make_unique<EtcdRows>(etcd, std::move(fence), options.noun);
    if (auto loaded = store->load(options); !loaded) return std::unexpected(loaded.error());
    return store;
}

}  // namespace larder
