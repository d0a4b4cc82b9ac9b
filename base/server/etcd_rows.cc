#include "base/server/etcd_rows.h"

#include <boost/json.hpp>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <exception>
#include <optional>
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
constexpr std::size_t kRowsOfPart = EtcdClient::kRowsMax - 1;  // the journal's removal is one more
// In a transaction or a journal, a row takes up to so many bytes more than its key and its text.
constexpr std::size_t kBytesBesideRow = 64;

// Returns the text of a journal's part: [[KEY, BYTES or null], ...], a new line, and the texts one after the other.
std::string journal_text(std::span<const Row> rows) {
    json::array sizes;
    sizes.reserve(rows.size());
    for (const Row& row : rows) {
        sizes.push_back(json::array{row.key, row.text ? json::value(row.text->size()) : json::value(nullptr)});
    }
    std::string text = json_text(sizes) + "\n";
    for (const Row& row : rows) text += row.text.value_or("");
    return text;
}

// Adds the rows of a journal's part.
Result<void> read_journal(std::string_view text, std::vector<Row>& rows) {
    try {
        const std::size_t end = text.find('\n');
        const json::value sizes = json::parse(text.substr(0, end));
        std::size_t at = end + 1;
        for (const json::value& entry : sizes.as_array()) {
            Row& row = rows.emplace_back(std::string(entry.at(0).as_string()));
            if (entry.at(1).is_null()) continue;
            const auto bytes = entry.at(1).to_number<std::size_t>();
            row.text = text.substr(at, bytes);
            at += bytes;
        }
        if (at == text.size()) return {};
        return fail(ErrorCode::corrupt, "its journal has another size than it says");
    } catch (const std::exception& error) {
        return fail(ErrorCode::corrupt, std::string("its journal cannot be read: ") + error.what());
    }
}

// Returns the rows in parts that one value, or one transaction, takes.
std::vector<std::span<const Row>> parts_of(std::span<const Row> rows, std::size_t rows_max) {
    std::vector<std::span<const Row>> parts;
    std::size_t first = 0;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t bytes_of_row = bytes_of(rows.subspan(i, 1)) + kBytesBesideRow;
        if (i > first && (i - first == rows_max || bytes + bytes_of_row > kEtcdRowBytesMax)) {
            parts.push_back(rows.subspan(first, i - first));
            first = i;
            bytes = 0;
        }
        bytes += bytes_of_row;
    }
    parts.push_back(rows.subspan(first));
    return parts;
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
          where_("etcd under " + etcd.prefix) {
        static std::atomic<std::uint64_t> stores = 0;
        store_ = ++stores;
    }

    Result<void> load(const RowStoreOptions& options);
    bool is_new() const override { return is_new_; }
    Result<void> write(std::span<const Row> rows) override;
    std::size_t rows_at_once() const override { return kRowsOfPart; }
    std::size_t bytes_at_once() const override { return kEtcdRowBytesMax - kRowsOfPart * kBytesBesideRow; }

private:
    template <typename Call>
    auto ask(const std::string& what, Call call) -> decltype(call());
    std::string sealed_key(std::string_view key) const { return rows_ + std::string(key); }
    std::string journal_part(std::size_t index) const { return journal_ + "/" + std::to_string(index); }
    std::vector<Row> sealed(std::span<const Row> rows) const;
    Result<void> commit(std::span<const Row> values, std::string_view cleared = {});
    Result<void> write_journal(std::span<const Row> rows);
    Result<void> find_journal(const std::string& what);
    Result<void> settle_journal();
    Result<std::optional<EtcdKey>> get(const std::string& what, const std::string& key);
    Result<void> take_row(const EtcdKey& stored, const RowStoreOptions& options) const;

    EtcdClient client_;
    EtcdFence fence_;
    std::string noun_;
    std::string rows_;
    std::string journal_;
    std::string sequence_;
    std::string where_;
    bool is_new_ = false;
    // The sequence's value is "NUMBER STORE.WRITE". The number grows by one with each write. The leader is one process,
    // so its number for this store, and the store's for the write, tell all writes of a term apart.
    std::string last_;          // the sequence's value after the last write; empty: there was none
    std::uint64_t number_ = 0;  // in `last_`
    std::uint64_t store_ = 0;
    std::uint64_t writes_ = 0;  // of this store, those with an error included
    // etcd may have a journal, or parts of one. These rows are carried out, and the journal removed, before the next
    // write. They are empty for a journal that does not count: its write has failed.
    std::optional<std::vector<Row>> journaled_;
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
Result<void> EtcdRows::commit(std::span<const Row> values, std::string_view cleared) {
    const std::string what = "write the " + noun_ + " in " + where_;
    for (;;) {
        const std::string next_of_store = std::to_string(number_ + 1) + " " + std::to_string(store_) + ".";
        const EtcdClient::Turn turn{.fence = fence_.key,
                                    .create_revision = fence_.create_revision,
                                    .sequence = sequence_,
                                    .last = last_,
                                    .next = next_of_store + std::to_string(++writes_)};
        const auto written = ask(what, [&] { return client_.write(values, turn, cleared); });
        if (!written) return std::unexpected(written.error());
        const std::optional<std::string>& found = *written;
        if (!found) return fail(ErrorCode::unavailable, what + ": another process leads now");
        if (!found->starts_with(next_of_store)) {
            return fail(ErrorCode::internal, what + ": its sequence was changed by others");
        }
        last_ = *found;
        ++number_;
        if (last_ == turn.next) return {};
        // An earlier write of this store has taken effect, although there was an error: this one comes after it.
    }
}

std::vector<Row> EtcdRows::sealed(std::span<const Row> rows) const {
    std::vector<Row> values;
    values.reserve(rows.size() + 1);
    for (const Row& row : rows) {
        Row& value = values.emplace_back(sealed_key(row.key));
        if (row.text) value.text = seal_row(row.key, *row.text);
    }
    return values;
}

Result<void> EtcdRows::settle_journal() {
    if (!journaled_) return {};
    const std::vector<std::span<const Row>> parts = parts_of(*journaled_, kRowsOfPart);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const bool is_last = i + 1 == parts.size();
        std::vector<Row> values = sealed(parts[i]);
        if (is_last) values.push_back({journal_, std::nullopt});
        if (auto written = commit(values, is_last ? journal_ + "/" : ""); !written) return written;
    }
    journaled_.reset();
    return {};
}

Result<void> EtcdRows::write_journal(std::span<const Row> rows) {
    // If one of these writes fails, the next one removes the journal: it may be there nevertheless.
    journaled_.emplace();
    const std::vector<std::span<const Row>> parts = parts_of(rows, rows.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
        std::vector<Row> values{{journal_part(i), seal_row(journal_part(i), journal_text(parts[i]))}};
        if (i + 1 == parts.size()) {
            values.push_back({journal_, seal_row(journal_, std::to_string(parts.size()))});
        }
        if (auto written = commit(values); !written) return written;
    }
    journaled_->assign(rows.begin(), rows.end());
    return {};
}

Result<void> EtcdRows::write(std::span<const Row> given) {
    if (auto settled = settle_journal(); !settled) return settled;
    if (given.empty()) return {};
    const std::vector<Row> rows = last_of_each_key(given);
    for (const Row& row : rows) {
        const std::size_t bytes = bytes_of(std::span(&row, 1));
        if (bytes <= kEtcdRowBytesMax) continue;
        return fail(ErrorCode::no_space, "write the " + noun_ + " in " + where_ + ": row \"" + row.key + "\" has " +
                                             std::to_string(bytes) + " bytes, which is more than etcd takes");
    }
    if (parts_of(rows, kRowsOfPart).size() == 1) return commit(sealed(rows));
    if (auto written = write_journal(rows); !written) return written;
    return settle_journal();
}

Result<void> EtcdRows::take_row(const EtcdKey& stored, const RowStoreOptions& options) const {
    const std::string_view key = std::string_view(stored.key).substr(rows_.size());
    const auto text = open_row(key, stored.value);
    if (!text) {
        auto damage = fail(ErrorCode::corrupt, "row \"" + std::string(key) + "\" does not match its CRC");
        return options.damaged ? options.damaged(key, damage.error()) : std::move(damage);
    }
    if (key == kVersionKey) return {};
    return options.take(key, *text);
}

Result<std::optional<EtcdKey>> EtcdRows::get(const std::string& what, const std::string& key) {
    return ask(what, [&] { return client_.get(key); });
}

// Finds the rows of a journal that an earlier leader has not carried out. Parts of a journal that does not count are
// removed like it.
Result<void> EtcdRows::find_journal(const std::string& what) {
    const auto unreadable = [&](const std::string& key) {
        return fail(ErrorCode::corrupt, what + ": the key " + key + " is missing, or cannot be read");
    };
    journaled_.emplace();
    const auto journal = get(what, journal_);
    if (!journal) return std::unexpected(journal.error());
    if (!*journal) return {};
    const std::string_view text = open_row(journal_, (*journal)->value).value_or("");
    std::size_t parts = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parts);
    if (error != std::errc{} || end != text.data() + text.size()) return unreadable(journal_);
    std::vector<Row> rows;
    for (std::size_t i = 0; i < parts; ++i) {
        const auto part = get(what, journal_part(i));
        if (!part) return std::unexpected(part.error());
        const auto part_text = *part ? open_row(journal_part(i), (*part)->value) : std::nullopt;
        if (!part_text) return unreadable(journal_part(i));
        if (auto read = read_journal(*part_text, rows); !read) return std::unexpected(read.error().within(what));
    }
    journaled_ = std::move(rows);
    return {};
}

Result<void> EtcdRows::load(const RowStoreOptions& options) {
    const std::string what = "read the " + noun_ + " in " + where_;
    const auto moving = get(what, std::string(kMovingKey));
    if (!moving) return std::unexpected(moving.error());
    if (*moving) {
        return fail(ErrorCode::unsupported, what + ": a move of state to it was not finished: run it again");
    }
    const auto sequence = get(what, sequence_);
    if (!sequence) return std::unexpected(sequence.error());
    if (*sequence) {
        last_ = (*sequence)->value;
        const auto [end, error] = std::from_chars(last_.data(), last_.data() + last_.size(), number_);
        if (error != std::errc{} || number_ == 0) return fail(ErrorCode::corrupt, what + ": its sequence is no number");
    }
    const auto version = get(what, sealed_key(kVersionKey));
    if (!version) return std::unexpected(version.error());
    is_new_ = !*version;
    // The version is read first: rows of a newer version may mean anything.
    if (*version) {
        const auto text = open_row(kVersionKey, (*version)->value);
        if (!text) return fail(ErrorCode::corrupt, what + ": the version does not match its CRC");
        if (auto checked = check_version(*text, options, where_); !checked) return checked;
    }
    if (auto found = find_journal(what); !found) return found;
    if (auto settled = settle_journal(); !settled) return settled;
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
