#include "allocator/service/state_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/server/lmdb.h"
#include "base/server/lmdb_check.h"
#include "base/server/logging.h"
#include "base/units.h"

namespace larder::allocator {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDatabase = "state";
// The file is kept so much longer than its last page, as what a transaction needs is told only when it is over.
constexpr std::uint64_t kSlackBytes = 8u << 20;

std::string_view text_of(LmdbBytes bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
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

std::optional<std::string> damage_of(const std::string& directory) {
    const std::array databases{LmdbDatabase{
        kDatabase, [](LmdbBytes key, LmdbBytes value) { return open_row(text_of(key), text_of(value)).has_value(); }}};
    return find_lmdb_damage(directory, databases);
}

// Of what nodes report, and so is no reason to lose the rest.
bool comes_again(std::string_view key) {
    return key.starts_with("node/") || key.starts_with("quotas/") || key.starts_with("ideal/");
}

Result<std::string> boot_id() {
    auto id = read_file("/proc/sys/kernel/random/boot_id");
    if (!id) return id;
    id->erase(std::min(id->find('\n'), id->size()));
    return id;
}

Result<FileDescriptor> lock(const std::string& state_directory) {
    auto file = open_file(state_directory + "/lock", O_RDWR | O_CREAT, 0600);
    if (!file) return file;
    if (::flock(file->get(), LOCK_EX | LOCK_NB) == 0) return file;
    if (errno != EWOULDBLOCK) return fail_errno(errno, "lock " + state_directory);
    return fail(ErrorCode::already_exists, "another larder-allocator uses the state directory " + state_directory);
}

Result<void> put_aside(const std::string& directory, const std::string& why) {
    const std::string aside = directory + ".damaged";
    std::error_code error;
    fs::remove_all(aside, error);
    fs::rename(directory, aside, error);
    if (error) return fail_errno(error.value(), "put the damaged state " + directory + " aside");
    log_error("the state is damaged: starting afresh, without registered jobs and pins",
              {{"damage", why}, {"put_aside_as", aside}});
    return {};
}

}  // namespace

Result<std::unique_ptr<StateStore>> StateStore::open(const StateStoreOptions& options, std::int64_t now_ns) {
    std::error_code error;
    fs::create_directories(options.directory, error);
    if (error) return fail_errno(error.value(), "make state directory " + options.directory);
    std::unique_ptr<StateStore> store(new StateStore);
    store->directory_ = options.directory + "/cluster";
    auto locked = lock(options.directory);
    if (!locked) return std::unexpected(locked.error());
    store->lock_ = std::move(*locked);

    auto damage = damage_of(store->directory_);
    if (!damage) {
        auto opened = store->open_environment(options);
        if (opened) opened = store->load();
        if (!opened && opened.error().code != ErrorCode::corrupt) return std::unexpected(opened.error());
        if (!opened) damage = opened.error().message;
    }
    if (damage) {
        mdb_env_close(std::exchange(store->environment_, nullptr));
        if (auto aside = put_aside(store->directory_, *damage); !aside) return std::unexpected(aside.error());
        store->stored_ = {};
        if (auto opened = store->open_environment(options); !opened) return std::unexpected(opened.error());
        if (auto loaded = store->load(); !loaded) return std::unexpected(loaded.error());
    }
    if (auto begun = store->begin_run(options, now_ns); !begun) return std::unexpected(begun.error());
    return store;
}

StateStore::~StateStore() {
    if (environment_ == nullptr) return;
    sync();
    mdb_env_close(environment_);
}

Result<void> StateStore::open_environment(const StateStoreOptions& options) {
    const std::string what = "open the state in " + directory_;
    if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, what);
    if (const int code = mdb_env_create(&environment_); code != 0) return std::unexpected(lmdb_error(code, what));
    int code = mdb_env_set_mapsize(environment_, options.map_bytes);
    if (code == 0) code = mdb_env_set_maxdbs(environment_, 1);
    if (code == 0) code = mdb_env_open(environment_, directory_.c_str(), MDB_NOTLS | MDB_NOSYNC, 0600);
    int dead = 0;
    if (code == 0) code = mdb_reader_check(environment_, &dead);
    if (code != 0) return std::unexpected(lmdb_error(code, what));
    cover_pages();
    Transaction transaction(environment_, 0);
    code = transaction.code();
    if (code == 0) code = mdb_dbi_open(transaction.get(), kDatabase, MDB_CREATE, &database_);
    if (code == 0) code = transaction.commit();
    if (code != 0) return std::unexpected(lmdb_error(code, what));
    return {};
}

Result<void> StateStore::load() {
    const std::string what = "read the state in " + directory_;
    const Transaction transaction(environment_, MDB_RDONLY);
    MDB_cursor* opened = nullptr;
    int code = transaction.code();
    if (code == 0) code = mdb_cursor_open(transaction.get(), database_, &opened);
    if (code != 0) return std::unexpected(lmdb_error(code, what));
    const std::unique_ptr<MDB_cursor, void (*)(MDB_cursor*)> cursor(opened, mdb_cursor_close);

    // First of all, as rows of a newer version may mean anything.
    MDB_val key = value_of("version");
    MDB_val value{};
    code = mdb_cursor_get(cursor.get(), &key, &value, MDB_SET);
    const auto read = [&]() -> Result<void> {
        const auto text = open_row(text_of(lmdb_bytes(key)), text_of(lmdb_bytes(value)));
        if (!text) return fail(ErrorCode::corrupt, what + ": a row does not match its CRC");
        auto taken = read_row(stored_, text_of(lmdb_bytes(key)), *text);
        if (taken) return taken;
        if (!comes_again(text_of(lmdb_bytes(key)))) return std::unexpected(taken.error().within(what));
        log_warn("a part of the state is not understood, and left out: reports bring it again",
                 {{"error", taken.error().message}});
        return {};
    };
    if (code == 0) {
        if (auto version = read(); !version) return version;
        if (stored_.version > kStateVersion) {
            return fail(ErrorCode::unsupported, "the state in " + directory_ + " is of version " +
                                                    std::to_string(stored_.version) + ", this larder-allocator knows " +
                                                    std::to_string(kStateVersion) +
                                                    " and older: run the newer one, or move the directory away");
        }
    }
    for (code = mdb_cursor_get(cursor.get(), &key, &value, MDB_FIRST); code == 0;
         code = mdb_cursor_get(cursor.get(), &key, &value, MDB_NEXT)) {
        if (auto taken = read(); !taken) return taken;
    }
    if (code != MDB_NOTFOUND) return std::unexpected(lmdb_error(code, what));
    afresh_ = stored_.version == 0;
    return {};
}

// Says whose clock the leases are told in from now on; those of another clock have to be waited out.
Result<void> StateStore::begin_run(const StateStoreOptions& options, std::int64_t now_ns) {
    StateRun run{
        .boot = options.boot_id, .lease_ns = options.lease_ns, .no_lease_before_ns = stored_.run.no_lease_before_ns};
    if (run.boot.empty()) {
        auto id = boot_id();
        if (!id) return std::unexpected(id.error());
        run.boot = std::move(*id);
    }
    ClusterRecord& record = stored_.record;
    ClusterRecord change;
    if (afresh_ || run.boot != stored_.run.boot) {
        const std::int64_t wait_ns = std::max(options.lease_ns, stored_.run.lease_ns);
        run.no_lease_before_ns = now_ns + wait_ns;
        for (auto& [node, leases] : record.leases) {
            for (Lease& lease : *leases) lease.expires_ns = now_ns;
            change.leases[node] = leases;
        }
        log_warn(afresh_ ? "no record of what was leased before: nothing is leased for as long as a lease lasts"
                         : "the machine was started anew: nothing is leased for as long as a lease lasts",
                 {{"wait", format_duration_ns(wait_ns)}});
    }
    record.no_lease_before_ns = run.no_lease_before_ns;
    std::vector<StateRow> rows = rows_of(change);
    rows.push_back(version_row());
    rows.push_back(row_of(run));
    return write(rows);
}

Result<void> StateStore::save(const ClusterRecord& change) {
    return write(rows_of(change));
}

Result<void> StateStore::write(std::span<const StateRow> rows) {
    Transaction transaction(environment_, 0);
    int code = transaction.code();
    for (const StateRow& row : rows) {
        if (code != 0) break;
        MDB_val key = value_of(row.key);
        MDB_val value = value_of(row.value ? std::string_view(*row.value) : std::string_view());
        code = row.value ? mdb_put(transaction.get(), database_, &key, &value, 0)
                         : mdb_del(transaction.get(), database_, &key, nullptr);
        if (code == MDB_NOTFOUND) code = 0;
    }
    if (code == 0) code = transaction.commit();
    if (code != 0) return std::unexpected(lmdb_error(code, "write the state in " + directory_));
    cover_pages();
    return {};
}

void StateStore::cover_pages() {
    // The slack takes no room on the disk until it is used.
    if (!cover_lmdb_pages(environment_, kSlackBytes)) {
        log_warn("the state's file cannot grow", {{"directory", directory_}, {"errno", errno}});
    }
}

void StateStore::sync() {
    if (const int code = mdb_env_sync(environment_, 1); code != 0) {
        log_warn("the state is not down on the disk", {{"error", mdb_strerror(code)}});
    }
}

}  // namespace larder::allocator
