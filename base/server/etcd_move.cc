#include "base/server/etcd_move.h"

#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/server/etcd_rows.h"

namespace larder {
namespace {

constexpr std::int64_t kLease_s = 30;
constexpr std::int64_t kRenewal_ns = 5'000'000'000;
constexpr std::size_t kPage = 100;
// A transaction of several rows has so many bytes at most.
constexpr std::size_t kBytesMax = 700'000;

class Move {
public:
    Move(const EtcdOptions& etcd, std::string leader_key)
        : client_(etcd), prefix_(etcd.prefix), leader_(std::move(leader_key)) {}
    ~Move() {
        // Without an answer the lease ends by itself.
        if (lease_ != 0) static_cast<void>(client_.revoke_lease(lease_));
    }
    Move(const Move&) = delete;
    Move& operator=(const Move&) = delete;

    Result<std::size_t> run(std::span<const MovedRows> stores, const std::function<Result<void>()>& is_written) {
        for (const MovedRows& store : stores) {
            if (auto fit = check_sizes(store); !fit) return std::unexpected(fit.error());
        }
        if (auto led = lead(); !led) return std::unexpected(led.error());
        if (auto begun = begin(); !begun) return std::unexpected(begun.error());
        std::map<std::string, std::string> written;
        for (const MovedRows& store : stores) {
            if (auto done = write_store(store, written); !done) return std::unexpected(done.error());
        }
        if (auto checked = read_back(written); !checked) return std::unexpected(checked.error());
        if (auto marked = is_written(); !marked) return std::unexpected(marked.error());
        const Row end{std::string(kMovingKey), std::nullopt};
        if (auto ended = write(std::span(&end, 1)); !ended) return std::unexpected(ended.error());
        return written.size();
    }

private:
    static Result<void> check_sizes(const MovedRows& store) {
        for (const Row& row : store.rows) {
            if (bytes_of(std::span(&row, 1)) <= kEtcdRowBytesMax) continue;
            return fail(ErrorCode::no_space,
                        "row \"" + row.key + "\" of the " + store.noun +
                            " is more than etcd takes: " + std::to_string(bytes_of(std::span(&row, 1))) + " bytes");
        }
        return {};
    }

    // No allocator leads while this process has the leader's key.
    Result<void> lead() {
        const auto lease = client_.grant_lease(kLease_s);
        if (!lease) return std::unexpected(lease.error());
        lease_ = *lease;
        renewed_ns_ = SteadyClock().now_ns();
        const auto key = client_.create(leader_, "a move of state", lease_);
        if (!key) return std::unexpected(key.error());
        if (key->lease != lease_) {
            return fail(ErrorCode::already_exists,
                        key->value + " leads in " + prefix_ + " of etcd: stop all allocators");
        }
        create_revision_ = key->create_revision;
        return {};
    }

    // Clears the rows of a move that was killed.
    Result<void> begin() {
        const auto moving = client_.get(kMovingKey);
        if (!moving) return std::unexpected(moving.error());
        const auto found = keys();
        if (!found) return std::unexpected(found.error());
        if (!*moving && !found->empty()) {
            return fail(ErrorCode::already_exists, "etcd has a state under " + prefix_ + ", such as " + prefix_ +
                                                       found->begin()->first + ": give another etcd.prefix");
        }
        if (const auto last = found->find(sequence_); last != found->end()) {
            const std::string& text = last->second;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number_);
            if (error != std::errc{} || end != text.data() + text.size() || number_ == 0) {
                return fail(ErrorCode::corrupt, prefix_ + sequence_ + " of etcd is no number: remove all keys under " +
                                                    prefix_ + " that are not in use, and move again");
            }
        }
        const Row mark{std::string(kMovingKey), "{}"};
        if (auto marked = write(std::span(&mark, 1)); !marked) return marked;
        std::vector<Row> removed;
        for (const auto& [key, value] : *found) {
            if (key == sequence_) continue;
            removed.push_back({key, std::nullopt});
            if (removed.size() < EtcdClient::kRowsMax) continue;
            if (auto done = write(removed); !done) return done;
            removed.clear();
        }
        return removed.empty() ? Result<void>() : write(removed);
    }

    Result<void> write_store(const MovedRows& store, std::map<std::string, std::string>& written) {
        std::vector<Row> rows = store.rows;
        rows.push_back(version_row(store.version));
        std::vector<Row> part;
        std::size_t bytes = 0;
        for (const Row& row : rows) {
            Row sealed{store.noun + "/" + row.key, seal_row(row.key, row.text.value_or(""))};
            if (!part.empty() &&
                (part.size() == EtcdClient::kRowsMax || bytes + bytes_of(std::span(&sealed, 1)) > kBytesMax)) {
                if (auto done = write(part); !done) return done;
                part.clear();
                bytes = 0;
            }
            bytes += bytes_of(std::span(&sealed, 1));
            written[sealed.key] = *sealed.text;
            part.push_back(std::move(sealed));
        }
        return write(part);
    }

    Result<void> read_back(const std::map<std::string, std::string>& written) {
        auto found = keys();
        if (!found) return std::unexpected(found.error());
        found->erase(sequence_);
        if (*found == written) return {};
        return fail(ErrorCode::corrupt, "etcd has other rows under " + prefix_ + " than were written");
    }

    // Returns all keys but the leader's and the mark.
    Result<std::map<std::string, std::string>> keys() {
        std::map<std::string, std::string> found;
        std::string after;
        for (;;) {
            if (auto renewed = renew(); !renewed) return std::unexpected(renewed.error());
            auto page = client_.list("", after, kPage);
            if (!page) return std::unexpected(page.error());
            if (page->empty()) return found;
            after = page->back().key;
            for (EtcdKey& key : *page) {
                if (key.key != leader_ && key.key != kMovingKey) found[key.key] = std::move(key.value);
            }
        }
    }

    Result<void> write(std::span<const Row> rows) {
        if (auto renewed = renew(); !renewed) return renewed;
        // A write that fails ends the move, so the number alone tells its writes apart.
        const std::string next = std::to_string(number_ + 1);
        const auto done = client_.write(rows, {.fence = leader_,
                                               .create_revision = create_revision_,
                                               .sequence = sequence_,
                                               .last = number_ == 0 ? "" : std::to_string(number_),
                                               .next = next});
        if (!done) return std::unexpected(done.error());
        if (!*done) return fail(ErrorCode::unavailable, "the move has lost its lease in etcd: run it again");
        if (**done != next) {
            return fail(ErrorCode::internal,
                        prefix_ + sequence_ + " of etcd was changed by others: run the move again");
        }
        ++number_;
        return {};
    }

    Result<void> renew() {
        const std::int64_t now_ns = SteadyClock().now_ns();
        if (now_ns - renewed_ns_ < kRenewal_ns) return {};
        const auto kept = client_.keep_lease(lease_);
        if (!kept) return std::unexpected(kept.error());
        renewed_ns_ = now_ns;
        return {};
    }

    EtcdClient client_;
    const std::string prefix_;
    const std::string leader_;
    const std::string sequence_ = "sequence/move";
    std::uint64_t number_ = 0;
    std::int64_t lease_ = 0;  // 0: none
    std::int64_t renewed_ns_ = 0;
    std::int64_t create_revision_ = 0;
};

}  // namespace

Result<std::size_t> move_rows_to_etcd(const EtcdOptions& etcd, const std::string& leader_key,
                                      std::span<const MovedRows> stores, const std::function<Result<void>()>& written) {
    return Move(etcd, leader_key).run(stores, written);
}

}  // namespace larder
