#include "base/server/lmdb_rows.h"

#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/server/lmdb.h"
#include "base/server/lmdb_check.h"
#include "base/server/logging.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

// The file is kept this much longer than its last page, because a transaction's need is known only when it is over.
constexpr std::uint64_t kSlackBytes = 8u << 20;

std::string_view text_of(const MDB_val& value) {
    return {static_cast<const char*>(value.mv_data), value.mv_size};
}

MDB_val value_of(std::string_view text) {
    return {text.size(), const_cast<char*>(text.data())};
}

// Owns a transaction until it is committed.
class Transaction {
public:
    Transaction(MDB_env* environment, unsigned flags)
        : code_(mdb_txn_begin(environment, nullptr, flags, &transaction_)) {}
    ~Transaction() {
        if (transaction_ != nullptr) mdb_txn_abort(transaction_);
    }
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;

    int code() const { return code_; }
    MDB_txn* get() const { return transaction_; }
    int commit() { return mdb_txn_commit(std::exchange(transaction_, nullptr)); }

private:
    MDB_txn* transaction_ = nullptr;
    int code_;
};

class LmdbRows final : public RowStore {
public:
    static Result<std::unique_ptr<RowStore>> open(const RowStoreOptions& options);
    LmdbRows() = default;
    ~LmdbRows() override;
    LmdbRows(const LmdbRows&) = delete;
    LmdbRows& operator=(const LmdbRows&) = delete;

    bool is_new() const override { return is_new_; }
    Result<void> write(std::span<const Row> rows) override;

private:
    Result<void> open_environment();
    int try_write(std::span<const Row> rows);
    Result<void> load(const RowStoreOptions& options);
    void grow_file_over_pages();

    std::string directory_;
    std::string noun_;
    std::string database_name_;
    std::uint64_t map_bytes_ = 0;
    Durability durability_ = Durability::machine;
    MDB_env* environment_ = nullptr;
    unsigned database_ = 0;
    bool is_new_ = false;
};

Result<std::unique_ptr<RowStore>> LmdbRows::open(const RowStoreOptions& options) {
    auto store = std::make_unique<LmdbRows>();
    store->directory_ = options.directory;
    store->noun_ = options.noun;
    store->database_name_ = options.database;
    store->map_bytes_ = options.map_bytes;
    store->durability_ = options.durability;
    const std::array<std::string_view, 1> databases{options.database};
    auto found = find_lmdb_damage(options.directory, databases, {.renew = true});
    if (!found) return std::unexpected(found.error());
    std::optional<std::string>& damage = *found;
    if (!damage) {
        auto opened = store->open_environment();
        if (opened) opened = store->load(options);
        if (!opened && opened.error().code != ErrorCode::corrupt) return std::unexpected(opened.error());
        if (!opened) damage = opened.error().message;
    }
    if (damage) {
        mdb_env_close(std::exchange(store->environment_, nullptr));
        const std::string aside = options.directory + ".damaged";
        std::error_code error;
        fs::remove_all(aside, error);
        fs::rename(options.directory, aside, error);
        if (error) {
            return fail_errno(error.value(),
                              "put the damaged " + std::string(options.noun) + " " + options.directory + " aside");
        }
        options.lost(*damage, aside);
        if (auto opened = store->open_environment(); !opened) return std::unexpected(opened.error());
        if (auto loaded = store->load(options); !loaded) return std::unexpected(loaded.error());
    }
    const Row version = version_row(options.version);
    if (auto written = store->write(std::span(&version, 1)); !written) return std::unexpected(written.error());
    return store;
}

LmdbRows::~LmdbRows() {
    if (environment_ == nullptr) return;
    // A clean exit leaves all rows on the disk even with Durability::process.
    if (const int code = mdb_env_sync(environment_, 1); code != 0) {
        log_warn("a store could not be flushed to the disk",
                 {{"directory", directory_}, {"error", mdb_strerror(code)}});
    }
    mdb_env_close(environment_);
}

Result<void> LmdbRows::open_environment() {
    const std::string what = "open the " + noun_ + " in " + directory_;
    if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, what);
    if (const int code = mdb_env_create(&environment_); code != 0) return std::unexpected(lmdb_error(code, what));
    int code = mdb_env_set_mapsize(environment_, map_bytes_);
    if (code == 0) code = mdb_env_set_maxdbs(environment_, 1);
    const unsigned flags = MDB_NOTLS | (durability_ == Durability::process ? MDB_NOSYNC : 0u);
    if (code == 0) code = mdb_env_open(environment_, directory_.c_str(), flags, 0600);
    int dead = 0;
    if (code == 0) code = mdb_reader_check(environment_, &dead);
    if (code != 0) return std::unexpected(lmdb_error(code, what));
    // LMDB syncs its file, but not the directories that hold its name.
    for (const std::string& directory : {directory_, fs::path(directory_).parent_path().string()}) {
        if (auto synced = sync_directory(directory); !synced) return std::unexpected(synced.error().within(what));
    }
    grow_file_over_pages();
    Transaction transaction(environment_, 0);
    code = transaction.code();
    if (code == 0) code = mdb_dbi_open(transaction.get(), database_name_.c_str(), MDB_CREATE, &database_);
    if (code == 0) code = transaction.commit();
    if (code != 0) return std::unexpected(lmdb_error(code, what));
    return {};
}

Result<void> LmdbRows::load(const RowStoreOptions& options) {
    const std::string what = "read the " + noun_ + " in " + directory_;
    const Transaction transaction(environment_, MDB_RDONLY);
    MDB_cursor* opened = nullptr;
    int code = transaction.code();
    if (code == 0) code = mdb_cursor_open(transaction.get(), database_, &opened);
    if (code != 0) return std::unexpected(lmdb_error(code, what));
    const std::unique_ptr<MDB_cursor, void (*)(MDB_cursor*)> cursor(opened, mdb_cursor_close);

    // The version is read first: rows of a newer version may mean anything.
    MDB_val key = value_of(kVersionKey);
    MDB_val value{};
    const auto text = [&]() -> Result<std::string_view> {
        const auto opened_row = open_row(text_of(key), text_of(value));
        if (!opened_row) return fail(ErrorCode::corrupt, what + ": a row does not match its CRC");
        return *opened_row;
    };
    code = mdb_cursor_get(cursor.get(), &key, &value, MDB_SET);
    is_new_ = code == MDB_NOTFOUND;
    if (code == 0) {
        const auto row = text();
        if (!row) return std::unexpected(row.error());
        if (auto checked = check_version(*row, options, directory_); !checked) return checked;
    }
    for (code = mdb_cursor_get(cursor.get(), &key, &value, MDB_FIRST); code == 0;
         code = mdb_cursor_get(cursor.get(), &key, &value, MDB_NEXT)) {
        const auto row = text();
        if (!row) return std::unexpected(row.error());
        if (text_of(key) == kVersionKey) continue;
        if (auto taken = options.take(text_of(key), *row); !taken) return std::unexpected(taken.error().within(what));
    }
    if (code != MDB_NOTFOUND) return std::unexpected(lmdb_error(code, what));
    return {};
}

Result<void> LmdbRows::write(std::span<const Row> rows) {
    const std::string what = "write the " + noun_ + " in " + directory_;
    int code = environment_ == nullptr ? MDB_PANIC : try_write(rows);
    if (code == MDB_PANIC) {
        // A commit failed at its last step, and LMDB takes no transaction any more in this environment.
        mdb_env_close(std::exchange(environment_, nullptr));
        if (auto opened = open_environment(); !opened) {
            mdb_env_close(std::exchange(environment_, nullptr));
            return std::unexpected(opened.error().within(what));
        }
        code = try_write(rows);
    }
    if (code != 0) return std::unexpected(lmdb_error(code, what));
    grow_file_over_pages();
    return {};
}

int LmdbRows::try_write(std::span<const Row> rows) {
    Transaction transaction(environment_, 0);
    int code = transaction.code();
    for (const Row& row : rows) {
        if (code != 0) break;
        const std::string sealed = row.text ? seal_row(row.key, *row.text) : std::string();
        MDB_val key = value_of(row.key);
        MDB_val value = value_of(sealed);
        code = row.text ? mdb_put(transaction.get(), database_, &key, &value, 0)
                        : mdb_del(transaction.get(), database_, &key, nullptr);
        if (code == MDB_NOTFOUND) code = 0;
    }
    return code == 0 ? transaction.commit() : code;
}

void LmdbRows::grow_file_over_pages() {
    // The slack takes no room on the disk until it is used.
    if (!grow_file_over_lmdb_pages(environment_, kSlackBytes)) {
        log_warn("the file of a store cannot grow", {{"directory", directory_}, {"errno", errno}});
    }
}

}  // namespace

Result<std::unique_ptr<RowStore>> open_lmdb_rows(const RowStoreOptions& options) {
    return LmdbRows::open(options);
}

}  // namespace larder
