// larder-check-lmdb [--renew] DIRECTORY DATABASE...: checks an LMDB environment by reading all of it with LMDB, which
// trusts its file. Damage may crash this process: the caller, find_lmdb_damage() in base/server/lmdb_check.h, takes a
// crash for damage. Not all damage shows to a reader, such as a wrong list of free pages, which harms the next writer.
// So --renew writes the rows to a new file, which replaces the old one: LMDB wrote every page of it, from rows alone.

#include <fcntl.h>
#include <lmdb.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/server/lmdb_check.h"

namespace {

using larder::LmdbCheckExit;

constexpr std::uint64_t kRowsPerProgressReport = 1024;
// A transaction dirties less than a page for each row, and LMDB limits dirty pages.
constexpr std::uint64_t kRowsPerTransaction = 50'000;
constexpr std::uint64_t kTransactionsPerSync = 20;

[[noreturn]] void end(LmdbCheckExit code, std::string_view reason) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(reason.size()), reason.data());
    std::_Exit(static_cast<int>(code));
}

void require(bool holds, std::string_view problem) {
    if (!holds) end(LmdbCheckExit::damaged, problem);
}

// Ends without a verdict, because the system failed.
[[noreturn]] void end_unchecked(int system_errno, const std::string& what) {
    const LmdbCheckExit code = system_errno == EIO ? LmdbCheckExit::cannot_read : LmdbCheckExit::cannot_check;
    end(code, what + ": " + std::strerror(system_errno));
}

// Ends if LMDB could not read. Errors that only damage can cause here are damage; others say nothing about the file.
// ENOMEM is no damage, because check_size() has found that LMDB maps no more than the file.
void require_read(int code) {
    if (code == 0) return;
    if (code < 0 || code == EINVAL || code == EOVERFLOW) end(LmdbCheckExit::damaged, mdb_strerror(code));
    end_unchecked(code, "open it with LMDB");
}

// The start of a page that describes an environment, as LMDB 0.9 writes it. The first two pages are such pages; the one
// of the later transaction counts.
struct MetaPage {
    std::array<std::byte, 16> page_header;
    std::uint32_t magic;
    std::uint32_t version;
    std::uint64_t address;
    std::uint64_t map_bytes;
    std::uint32_t page_bytes;
    std::array<std::byte, 92> trees;
    std::uint64_t last_page;
    std::uint64_t transaction;
};
static_assert(sizeof(MetaPage) == 152 && offsetof(MetaPage, page_bytes) == 40 && offsetof(MetaPage, last_page) == 136);
constexpr std::uint32_t kMetaMagic = 0xBEEFC0DE;

MetaPage read_meta(int fd, std::uint64_t at, const std::string& path) {
    MetaPage meta{};
    ssize_t got = 0;
    do {
        got = ::pread(fd, &meta, sizeof meta, static_cast<off_t>(at));
    } while (got < 0 && errno == EINTR);
    if (got < 0) end_unchecked(errno, "read " + path);
    require(got == sizeof meta, "it is truncated");
    require(meta.magic == kMetaMagic, "its first pages are damaged");
    return meta;
}

// Ends if the file is shorter than its pages. LMDB would map all of them, however many a damaged page says they are.
void check_size(int fd, std::uint64_t file_bytes, const std::string& path) {
    MetaPage meta = read_meta(fd, 0, path);
    require(std::has_single_bit(meta.page_bytes) && meta.page_bytes >= sizeof meta && meta.page_bytes <= 65536,
            "its first pages are damaged");
    const MetaPage second = read_meta(fd, meta.page_bytes, path);
    if (second.transaction > meta.transaction) meta = second;
    require(meta.page_bytes > 0 && meta.last_page < file_bytes / meta.page_bytes, "it is truncated");
}

// Tells the caller that the check makes progress.
void report_progress() {
    std::fputc('\n', stderr);
}

// The new file, in a directory of its own. If it cannot be written, for example on a full disk, the check goes on
// without it.
class Renewal {
public:
    // Writes nothing if `directory` is empty.
    Renewal(std::string directory, unsigned databases, std::size_t map_bytes) : directory_(std::move(directory)) {
        if (directory_.empty()) return;
        remove();
        int code = ::mkdir(directory_.c_str(), 0700) == 0 ? 0 : errno;
        if (code == 0) code = mdb_env_create(&environment_);
        if (code == 0) code = mdb_env_set_maxdbs(environment_, databases);
        if (code == 0) code = mdb_env_set_mapsize(environment_, map_bytes);
        if (code == 0) code = mdb_env_open(environment_, directory_.c_str(), MDB_NOLOCK | MDB_NOSYNC, 0600);
        if (code == 0) code = mdb_txn_begin(environment_, nullptr, 0, &transaction_);
        if (code != 0) give_up(code);
    }
    Renewal(const Renewal&) = delete;
    Renewal& operator=(const Renewal&) = delete;

    void begin_database(const std::string& name) {
        if (transaction_ == nullptr) return;
        if (const int code = mdb_dbi_open(transaction_, name.c_str(), MDB_CREATE, &database_); code != 0) give_up(code);
    }

    void put(MDB_val key, MDB_val value) {
        if (transaction_ == nullptr) return;
        int code = mdb_put(transaction_, database_, &key, &value, MDB_APPEND);
        if (code == 0 && ++rows_ % kRowsPerTransaction == 0) {
            const bool is_sync_due = rows_ % (kRowsPerTransaction * kTransactionsPerSync) == 0;
            code = mdb_txn_commit(transaction_);
            if (code == 0 && is_sync_due) code = mdb_env_sync(environment_, 1);
            if (code == 0) code = mdb_txn_begin(environment_, nullptr, 0, &transaction_);
        }
        if (code != 0) give_up(code);
    }

    // Replaces the old file. Returns why there is no new file, or an empty string.
    std::string finish(const std::string& path) {
        if (transaction_ == nullptr) return problem_;
        int code = mdb_txn_commit(transaction_);
        if (code == 0) code = mdb_env_sync(environment_, 1);
        if (code == 0) {
            mdb_env_close(environment_);
            if (::rename((directory_ + "/data.mdb").c_str(), path.c_str()) != 0) code = errno;
        }
        if (code != 0) {
            give_up(code);
            return problem_;
        }
        remove();
        const auto synced = larder::sync_directory(path.substr(0, path.rfind('/')));
        return synced ? "" : synced.error().message;
    }

private:
    // The process ends soon, so it keeps what LMDB has in memory.
    void give_up(int code) {
        transaction_ = nullptr;
        problem_ = "write " + directory_ + "/data.mdb: " + mdb_strerror(code);
        // LMDB takes a short write for an I/O error.
        struct statvfs disk{};
        if (code == EIO && ::statvfs(directory_.c_str(), &disk) == 0 && disk.f_bavail == 0) {
            problem_ += ": the disk is full";
        }
        remove();
    }

    void remove() const {
        ::unlink((directory_ + "/data.mdb").c_str());
        ::rmdir(directory_.c_str());
    }

    std::string directory_;
    std::string problem_;
    MDB_env* environment_ = nullptr;
    MDB_txn* transaction_ = nullptr;
    MDB_dbi database_ = 0;
    std::uint64_t rows_ = 0;
};

class Checker {
public:
    Checker(const std::string& directory, std::span<char* const> databases) : databases_(databases) {
        const std::string path = directory + "/data.mdb";
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        struct stat status{};
        if (fd < 0 || ::fstat(fd, &status) != 0) end_unchecked(errno, path);
        file_bytes_ = static_cast<std::size_t>(status.st_size);
        require(file_bytes_ > 0, "it is truncated");
        check_size(fd, file_bytes_, path);
        ::close(fd);

        MDB_env* environment = nullptr;
        require_read(mdb_env_create(&environment));
        require_read(mdb_env_set_maxdbs(environment, static_cast<unsigned>(databases.size())));
        require_read(mdb_env_set_mapsize(environment, file_bytes_));
        // Nobody writes to the environment, so there is no need for its lock file.
        require_read(mdb_env_open(environment, directory.c_str(), MDB_RDONLY | MDB_NOLOCK, 0));
        require_read(mdb_txn_begin(environment, nullptr, MDB_RDONLY, &transaction_));
        MDB_envinfo info{};
        MDB_stat stat{};
        require_read(mdb_env_info(environment, &info));
        require_read(mdb_env_stat(environment, &stat));
        require(stat.ms_psize > 0, "its first pages are damaged");
        require(info.me_last_pgno < file_bytes_ / stat.ms_psize, "it is truncated");
        key_bytes_max_ = static_cast<std::size_t>(mdb_env_get_maxkeysize(environment));
    }

    std::size_t file_bytes() const { return file_bytes_; }

    void run(Renewal& renewal) {
        MDB_dbi names = 0;
        require_read(mdb_dbi_open(transaction_, nullptr, 0, &names));
        std::vector<std::string> found;
        walk(names, [&](const MDB_val& name, const MDB_val&) {
            found.emplace_back(static_cast<const char*>(name.mv_data), name.mv_size);
        });
        // An environment has no databases before its first commit.
        require(found.empty() || found.size() >= databases_.size(), "databases are missing");
        for (const std::string& name : found) {
            require(std::ranges::find(databases_, name) != databases_.end(), "it has a foreign database");
            MDB_dbi database = 0;
            require_read(mdb_dbi_open(transaction_, name.c_str(), 0, &database));
            renewal.begin_database(name);
            walk(database, [&](const MDB_val& key, const MDB_val& value) { renewal.put(key, value); });
        }
    }

private:
    // Reads all rows of a database, and calls `visit` for each.
    template <typename Visit>
    void walk(MDB_dbi database, const Visit& visit) {
        unsigned flags = 0;
        MDB_stat stat{};
        MDB_cursor* cursor = nullptr;
        require_read(mdb_dbi_flags(transaction_, database, &flags));
        require_read(mdb_stat(transaction_, database, &stat));
        require_read(mdb_cursor_open(transaction_, database, &cursor));
        require(flags == 0, "a database's description is damaged");
        MDB_val key{};
        MDB_val value{};
        MDB_val last{};
        std::uint64_t rows = 0;
        int code = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
        for (; code == 0; code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) {
            // An endless walk through a damaged file ends here, too.
            require(rows < stat.ms_entries, "a database does not hold what it counts");
            require(key.mv_size > 0 && key.mv_size <= key_bytes_max_, "a key is damaged");
            require(value.mv_size <= file_bytes_, "a row lies outside");
            require(rows == 0 || mdb_cmp(transaction_, database, &last, &key) < 0, "keys are out of order");
            read(value);
            visit(key, value);
            last = key;
            if (++rows % kRowsPerProgressReport == 0) report_progress();
        }
        if (code != MDB_NOTFOUND) require_read(code);
        require(rows == stat.ms_entries, "a database does not hold what it counts");
        mdb_cursor_close(cursor);
    }

    // Reads every byte, because any page may be unreadable.
    void read(const MDB_val& value) {
        const auto* const bytes = static_cast<const volatile unsigned char*>(value.mv_data);
        for (std::size_t i = 0; i < value.mv_size; i++) static_cast<void>(bytes[i]);
    }

    std::span<char* const> databases_;
    MDB_txn* transaction_ = nullptr;
    std::size_t file_bytes_ = 0;
    std::size_t key_bytes_max_ = 0;
};

void run(std::span<char* const> arguments) {
    const bool renew = !arguments.empty() && std::string_view(arguments[0]) == "--renew";
    if (renew) arguments = arguments.subspan(1);
    if (arguments.size() < 2) {
        end(LmdbCheckExit::cannot_check, "larder-check-lmdb is started by larderd and larder-allocator");
    }
    const std::string directory = arguments[0];
    const auto databases = arguments.subspan(1);
    Checker checker(directory, databases);
    const std::size_t map_bytes = 2 * checker.file_bytes() + (std::size_t{64} << 20);
    Renewal renewal(renew ? directory + "/renewed" : "", static_cast<unsigned>(databases.size()), map_bytes);
    checker.run(renewal);
    if (const std::string problem = renewal.finish(directory + "/data.mdb"); !problem.empty()) {
        end(LmdbCheckExit::not_renewed, problem);
    }
}

}  // namespace

int main(int argc, char** argv) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const rlimit no_core{1, 1};  // a limit of 0 would still start a handler of cores
    ::setrlimit(RLIMIT_CORE, &no_core);
    try {
        run(std::span(argv + 1, static_cast<std::size_t>(argc - 1)));
    } catch (const std::exception& error) {
        end(LmdbCheckExit::cannot_check, error.what());
    }
    std::_Exit(0);
}
