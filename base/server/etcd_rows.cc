#include "base/server/etcd_rows.h"

#include <boost/json.hpp>

#include <algorithm>
#include <charconv>
#include <exception>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/server/json_text.h"
#include "base/server/logging.h"

namespace larder {
namespace {

namespace json = boost::json;

constexpr std::size_t kRowsOfPage = 100;
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

// Returns the rows without those that a later one of the same key replaces: etcd refuses a key that comes twice.
std::vector<Row> last_of_each_key(std::span<const Row> rows) {
    std::set<std::string_view> seen;
    std::vector<Row> last;
    last.reserve(rows.size());
    for (const Row& row : std::views::reverse(rows)) {
        if (seen.insert(row.key).second) last.push_back(row);
    }
    std::ranges::reverse(last);
    return last;
}

class EtcdRows final : public RowStore {
public:
    EtcdRows(const EtcdOptions& etcd, EtcdFence fence, std::string_view noun)
        : client_(etcd),
          fence_(std::move(fence)),
          noun_(noun),
          rows_(noun_ + "/"),
          journal_("journal/" + noun_),
          sequence_("sequence/" + noun_),
          where_("etcd under " + etcd.prefix) {}

    Result<void> load(const RowStoreOptions& options);
    bool is_new() const override { return is_new_; }
    Result<void> write(std::span<const Row> rows) override;
    std::size_t rows_at_once() const override { return EtcdClient::kRowsMax - 1; }
    std::size_t bytes_at_once() const override { return kEtcdChangeBytesMax; }

private:
    template <typename Call>
    auto ask(const std::string& what, Call call) -> decltype(call());
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
    std::string sequence_;
    std::uint64_t number_ = 0;  // of the last write
    std::string where_;
    bool is_new_ = false;
    std::vector<Row> unfinished_;  // of a journal that is written, but not carried out
};

// Calls `call` until etcd answers, as long as this process leads.
template <typename Call>
auto EtcdRows::ask(const std::string& what, Call call) -> decltype(call()) {
    for (bool is_first = true;; is_first = false) {
        if (!fence_.is_held()) return fail(ErrorCode::unavailable, what + ": this process no longer leads");
        auto answer = call();
        if (answer) return answer;
        const ErrorCode code = answer.error().code;
        if (code != ErrorCode::unavailable && code != ErrorCode::timeout) {
            return std::unexpected(answer.error().within(what));
        }
        if (is_first)
            log_warn("etcd cannot do it now: trying again", {{"what", what}, {"error", answer.error().message}});
        sleep_ns(kRetryPause_ns);
    }
}

// Writes values under their whole keys, in one transaction.
Result<void> EtcdRows::commit(std::span<const Row> values) {
    const std::string what = "write the " + noun_ + " in " + where_;
    const EtcdClient::Turn turn{
        .fence = fence_.key, .create_revision = fence_.create_revision, .sequence = sequence_, .number = number_};
    const auto written = ask(what, [&] { return client_.write(values, turn); });
    if (!written) return std::unexpected(written.error());
    if (!*written) return fail(ErrorCode::unavailable, what + ": another process leads now");
    ++number_;
    return {};
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

Result<void> EtcdRows::write(std::span<const Row> given) {
    if (auto finished = finish_journal(); !finished) return finished;
    const std::vector<Row> rows = last_of_each_key(given);
    const bool needs_journal = rows.size() >= EtcdClient::kRowsMax;
    const std::string text = needs_journal ? json_text(json_of(rows)) : std::string();
    if (const std::size_t bytes = std::max(bytes_of(rows), text.size()); bytes > kEtcdChangeBytesMax) {
        return fail(ErrorCode::no_space, "write the " + noun_ + " in " + where_ + ": a change of " +
                                             std::to_string(bytes) + " bytes is more than etcd takes");
    }
    if (!needs_journal) return carry_out(rows);
    const Row journal{journal_, seal_row(journal_, text)};
    if (auto written = commit(std::span(&journal, 1)); !written) return written;
    unfinished_ = rows;
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
    const auto get = [&](const std::string& key) { return ask(what, [&] { return client_.get(key); }); };
    const auto moving = get(std::string(kMovingKey));
    if (!moving) return std::unexpected(moving.error());
    if (*moving) {
        return fail(ErrorCode::unsupported, what + ": a move of state to it was not finished: run it again");
    }
    const auto sequence = get(sequence_);
    if (!sequence) return std::unexpected(sequence.error());
    if (*sequence) {
        const std::string& text = (*sequence)->value;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number_);
        if (error != std::errc{} || number_ == 0) return fail(ErrorCode::corrupt, what + ": its sequence is no number");
    }
    const auto journal = get(journal_);
    if (!journal) return std::unexpected(journal.error());
    const auto version = get(sealed_key(kVersionKey));
    if (!version) return std::unexpected(version.error());
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
        unfinished_ = last_of_each_key(*rows);
        if (auto finished = finish_journal(); !finished) return finished;
    }
    std::string after;
    for (;;) {
        const auto page = ask(what, [&] { return client_.list(rows_, after, kRowsOfPage); });
        if (!page) return std::unexpected(page.error());
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
