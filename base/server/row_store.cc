#include "base/server/row_store.h"

#include <boost/json.hpp>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/hash.h"
#include "base/server/lmdb.h"
#include "base/server/lmdb_check.h"
#include "base/server/logging.h"

namespace larder {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr std::string_view kVersionKey = "version";
// The file is kept this much longer than its last page, because a transaction's need is known only when it is over.
constexpr std::uint64_t kSlackBytes = 8u << 20;

std::uint32_t crc_of(std::string_view key, std::string_view text) {
    return crc32c(std::as_bytes(std::span(text)), crc32c(std::as_bytes(std::span(key))));
}

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

Result<std::uint64_t> version_in(std::string_view text) {
    json::error_code error;
    const json::value value = json::parse(text, error);
    const json::object* object = error ? nullptr : value.if_object();
    const json::value* version = object == nullptr ? nullptr : object->if_contains("version");
    if (version == nullptr || !version->is_number()) {
        return fail(ErrorCode::corrupt, "row \"version\" cannot be parsed");
    }
    const auto number = version->to_number<std::uint64_t>(error);
    if (error) return fail(ErrorCode::corrupt, "row \"version\" cannot be parsed");
    return number;
}

}  // namespace

std::string seal_row(std::string_view key, std::string_view text) {
    const std::uint32_t crc = crc_of(key, text);
    std::string value(sizeof crc, '\0');
    std::memcpy(value.data(), &crc, sizeof crc);
    return value.append(text);
}

std::optional<std::string_view> open_row(std::string_view key, std::string_view value) {
    std::uint32_t crc = 0;
    if (value.size() < sizeof crc) return std::nullopt;
    std::memcpy(&crc, value.data(), sizeof crc);
    value.remove_prefix(sizeof crc);
    if (crc != crc_of(key, value)) return std::nullopt;
    return value;
}

Result<std::unique_ptr<RowStore>> RowStore::open(const RowStoreOptions& options) {
    std::unique_ptr<RowStore> store(new RowStore);
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
    const Row version{std::string(kVersionKey), R"({"version":)" + std::to_string(options.version) + "}"};
    if (auto written = store->write(std::span(&version, 1)); !written) return std::unexpected(written.error());
    return store;
}

RowStore::~RowStore() {
    if (environment_ == nullptr) return;
    // A clean exit leaves all rows on the disk even with Durability::process.
    if (const int code = mdb_env_sync(environment_, 1); code != 0) {
        log_warn("a store could not be flushed to the disk",
                 {{"directory", directory_}, {"error", mdb_strerror(code)}});
    }
    mdb_env_close(environment_);
}

Result<void> RowStore::open_environment() {
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

Result<void> RowStore::load(const RowStoreOptions& options) {
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
        const auto version = version_in(*row);
        if (!version) return std::unexpected(version.error().within(what));
        if (*version > options.version) {
            return fail(ErrorCode::unsupported,
                        "the " + noun_ + " in " + directory_ + " has version " + std::to_string(*version) +
                            ", but this " + std::string(options.program) + " reads " + std::to_string(options.version) +
                            " and older: run a newer one, or move the directory away");
        }
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

Result<void> RowStore::write(std::span<const Row> rows) {
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

int RowStore::try_write(std::span<const Row> rows) {
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

void RowStore::grow_file_over_pages() {
    // The slack takes no room on the disk until it is used.
    if (!grow_file_over_lmdb_pages(environment_, kSlackBytes)) {
        log_warn("the file of a store cannot grow", {{"directory", directory_}, {"errno", errno}});
    }
}

}  // namespace larder
