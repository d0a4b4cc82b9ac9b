#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/file.h"
#include "cache/store/index_environment.h"
#include "cache/store/index_rows.h"
#include "cache/store/lmdb.h"

namespace larder::cache {
namespace {

constexpr unsigned kCheckSecondsMax = 120;

std::optional<std::string> damage_of(int code, const char* where) {
    if (code == 0) return std::nullopt;
    return std::string(where) + ": " + mdb_strerror(code);
}

// Reads every row of a database.
template <typename Check>
std::optional<std::string> walk_rows(MDB_txn* transaction, MDB_dbi database, const char* where, Check check) {
    MDB_stat stat;
    if (const int code = mdb_stat(transaction, database, &stat); code != 0) return damage_of(code, where);
    MDB_cursor* cursor = nullptr;
    if (const int code = mdb_cursor_open(transaction, database, &cursor); code != 0) return damage_of(code, where);
    MDB_val key{};
    MDB_val value{};
    std::size_t rows = 0;
    int code = 0;
    while ((code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
        if (++rows > stat.ms_entries) return std::string(where) + ": more rows than it counts";
        if (!check(lmdb_bytes(key), lmdb_bytes(value))) return std::string(where) + ": a row does not match its CRC";
    }
    if (code != MDB_NOTFOUND) return damage_of(code, where);
    if (rows != stat.ms_entries) return std::string(where) + ": fewer rows than it counts";
    return std::nullopt;
}

template <typename Row>
std::optional<std::string> walk_database(MDB_txn* transaction, const char* name, std::size_t key_bytes) {
    MDB_dbi database = 0;
    if (const int code = mdb_dbi_open(transaction, name, 0, &database); code != 0) return damage_of(code, name);
    return walk_rows(transaction, database, name, [&](auto key, auto value) {
        return key.size() == key_bytes && read_row<Row>(key, value).has_value();
    });
}

// Pages LMDB would write to next: one that is in use, or beyond the end, would destroy more later.
std::optional<std::string> walk_free_pages(MDB_txn* transaction, std::size_t last_page) {
    constexpr MDB_dbi kFreePages = 0;
    return walk_rows(transaction, kFreePages, "free pages", [&](auto, auto value) {
        if (value.size() < sizeof(std::size_t)) return false;
        std::size_t count = 0;
        std::memcpy(&count, value.data(), sizeof count);
        if (count > value.size() / sizeof count - 1) return false;
        std::size_t previous = last_page + 1;
        for (std::size_t i = 1; i <= count; i++) {
            std::size_t page = 0;
            std::memcpy(&page, value.data() + i * sizeof page, sizeof page);
            if (page < 2 || page >= previous) return false;
            previous = page;
        }
        return true;
    });
}

std::optional<std::string> walk_environment(MDB_env* environment) {
    MDB_envinfo info;
    MDB_stat stat;
    mdb_filehandle_t fd = -1;
    struct stat file{};
    mdb_env_info(environment, &info);
    mdb_env_stat(environment, &stat);
    mdb_env_get_fd(environment, &fd);
    if (::fstat(fd, &file) != 0) return std::nullopt;
    if (static_cast<std::uint64_t>(file.st_size) < (info.me_last_pgno + 1) * stat.ms_psize) return "it is truncated";

    MDB_txn* transaction = nullptr;
    if (const int code = mdb_txn_begin(environment, nullptr, MDB_RDONLY, &transaction); code != 0) {
        return damage_of(code, "its first page");
    }
    // An environment made, but not yet committed to, has no databases.
    if (info.me_last_txnid == 0) return std::nullopt;
    auto damage = walk_free_pages(transaction, info.me_last_pgno);
    if (!damage) damage = walk_database<BlockRow>(transaction, kBlocksDatabase, IndexKey::kBlockBytes);
    if (!damage) damage = walk_database<SegmentRow>(transaction, kSegmentsDatabase, IndexKey::kSegmentBytes);
    if (!damage) damage = walk_database<StateRow>(transaction, kStateDatabase, sizeof kNextSegmentKey);
    return damage;
}

// Runs in the child; leaks what its end frees.
std::optional<std::string> check(const std::string& directory, std::uint64_t map_bytes) {
    MDB_env* environment = nullptr;
    if (mdb_env_create(&environment) != 0) return std::nullopt;
    mdb_env_set_mapsize(environment, map_bytes);
    mdb_env_set_maxdbs(environment, kIndexDatabases);
    const int code = mdb_env_open(environment, directory.c_str(), MDB_RDONLY | MDB_NOLOCK | MDB_NOTLS, 0600);
    // What is no damage, the parent will meet and report.
    if (code != 0) return lmdb_damaged(code) ? damage_of(code, "its first page") : std::nullopt;
    return walk_environment(environment);
}

[[noreturn]] void run_child(int report_fd, const std::string& directory, std::uint64_t map_bytes) {
    for (const int signal : {SIGBUS, SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGALRM, SIGTERM, SIGINT}) {
        ::signal(signal, SIG_DFL);
    }
    ::prctl(PR_SET_DUMPABLE, 0);
    const int null = ::open("/dev/null", O_WRONLY);
    if (null >= 0) ::dup2(null, STDERR_FILENO);
    ::alarm(kCheckSecondsMax);
    const auto damage = check(directory, map_bytes);
    if (damage && ::write(report_fd, damage->data(), damage->size()) < 0) ::_exit(2);
    ::_exit(damage ? 1 : 0);
}

}  // namespace

std::optional<std::string> find_index_damage(const std::string& directory, std::uint64_t map_bytes) {
    struct stat file{};
    if (::stat((directory + "/data.mdb").c_str(), &file) != 0) return std::nullopt;
    if (file.st_size == 0) return "it is truncated";
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
    FileDescriptor report(ends[0]);
    FileDescriptor child_report(ends[1]);
    const pid_t child = ::fork();
    if (child < 0) return std::nullopt;
    if (child == 0) run_child(child_report.get(), directory, map_bytes);
    child_report.reset();
    std::string damage;
    char buffer[256];
    for (;;) {
        const ssize_t got = ::read(report.get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        damage.append(buffer, static_cast<std::size_t>(got));
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) return std::nullopt;
    }
    if (WIFSIGNALED(status)) return std::string("reading it ends in ") + ::strsignal(WTERMSIG(status));
    if (WEXITSTATUS(status) == 0) return std::nullopt;
    return damage.empty() ? "it cannot be read" : damage;
}

}  // namespace larder::cache
