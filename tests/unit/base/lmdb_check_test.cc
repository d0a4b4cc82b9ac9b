// Tests that the check of an LMDB environment finds damage, and reports each way its program can end. The tests of the
// index and of the allocator's state try all kinds of damage.

#include "base/server/lmdb_check.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "tests/support/temp_directory.h"

namespace larder {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Optional;

using Rows = std::map<std::string, std::string>;

class LmdbCheck : public testing::Test {
protected:
    LmdbCheck() {
        for (int i = 0; i < 3000; i++) rows_["key " + std::to_string(i)] = std::string(i % 100, 'v');
        rows_["large"] = std::string(100'000, 'x');
        fs::create_directory(environment_);
        with_database("state", [&](MDB_txn* transaction, MDB_dbi database) {
            for (const auto& [name, text] : rows_) put(transaction, database, name, text);
            put(transaction, database, "removed", std::string(50'000, 'x'));
        });
        with_database("state", [](MDB_txn* transaction, MDB_dbi database) {
            MDB_val key = value_of("removed");
            ASSERT_EQ(mdb_del(transaction, database, &key, nullptr), 0);
        });
    }

    static MDB_val value_of(std::string_view text) { return {text.size(), const_cast<char*>(text.data())}; }

    static void put(MDB_txn* transaction, MDB_dbi database, std::string_view name, std::string_view text) {
        MDB_val key = value_of(name);
        MDB_val value = value_of(text);
        ASSERT_EQ(mdb_put(transaction, database, &key, &value, 0), 0);
    }

    template <typename Work>
    void with_database(const char* name, const Work& work) {
        MDB_env* environment = nullptr;
        MDB_txn* transaction = nullptr;
        MDB_dbi database = 0;
        ASSERT_EQ(mdb_env_create(&environment), 0);
        mdb_env_set_maxdbs(environment, 4);
        mdb_env_set_mapsize(environment, std::size_t{64} << 20);
        ASSERT_EQ(mdb_env_open(environment, environment_.c_str(), 0, 0600), 0);
        ASSERT_EQ(mdb_txn_begin(environment, nullptr, 0, &transaction), 0);
        ASSERT_EQ(mdb_dbi_open(transaction, name, MDB_CREATE, &database), 0);
        work(transaction, database);
        ASSERT_EQ(mdb_txn_commit(transaction), 0);
        mdb_env_close(environment);
    }

    Rows rows_now() {
        Rows rows;
        with_database("state", [&](MDB_txn* transaction, MDB_dbi database) {
            MDB_cursor* cursor = nullptr;
            ASSERT_EQ(mdb_cursor_open(transaction, database, &cursor), 0);
            MDB_val key{};
            MDB_val value{};
            while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
                rows[{static_cast<char*>(key.mv_data), key.mv_size}] = {static_cast<char*>(value.mv_data),
                                                                        value.mv_size};
            }
            mdb_cursor_close(cursor);
        });
        return rows;
    }

    Result<std::optional<std::string>> check(const LmdbCheckOptions& options = {}) {
        constexpr std::array<std::string_view, 1> kDatabases{"state"};
        return find_lmdb_damage(environment_, kDatabases, options);
    }

    // Checks with a shell script as the program.
    Result<std::optional<std::string>> check_with_script(const std::string& script,
                                                         std::int64_t stalled_ms_max = 60'000) {
        const std::string path = directory_ / "checker";
        std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
        fs::permissions(path, fs::perms::owner_all);
        return check({.program = path, .stalled_ms_max = stalled_ms_max});
    }

    test::TempDirectory directory_;
    std::string environment_ = directory_ / "environment";
    Rows rows_;
};

TEST_F(LmdbCheck, SoundAndMissingEnvironmentsHaveNoDamage) {
    EXPECT_EQ(check().value(), std::nullopt);
    fs::remove_all(environment_);
    EXPECT_EQ(check().value(), std::nullopt);
    EXPECT_EQ(check({.renew = true}).value(), std::nullopt);
}

TEST_F(LmdbCheck, RenewalKeepsAllRowsInAFileWithoutFreePages) {
    const auto bytes_before = fs::file_size(environment_ + "/data.mdb");
    fs::create_directory(environment_ + "/renewed");
    std::ofstream(environment_ + "/renewed/data.mdb") << "left by a renewal that was killed";
    EXPECT_EQ(check({.renew = true}).value(), std::nullopt);
    EXPECT_LT(fs::file_size(environment_ + "/data.mdb"), bytes_before);
    EXPECT_FALSE(fs::exists(environment_ + "/renewed"));
    EXPECT_EQ(rows_now(), rows_);
    EXPECT_EQ(check().value(), std::nullopt);
}

TEST_F(LmdbCheck, EnvironmentIsCheckedAndKeptIfTheNewFileCannotBeWritten) {
    std::ofstream(environment_ + "/renewed") << "no directory";
    EXPECT_EQ(check({.renew = true}).value(), std::nullopt);
    EXPECT_EQ(rows_now(), rows_);
    with_database("other", [](MDB_txn*, MDB_dbi) {});
    EXPECT_THAT(check({.renew = true}).value(), Optional(HasSubstr("foreign database")));
}

TEST_F(LmdbCheck, FullDiskKeepsTheEnvironment) {
    // A limit on file sizes stands in for a full disk: LMDB sees a short write.
    const auto bytes = fs::file_size(environment_ + "/data.mdb");
    const std::string program = fs::read_symlink("/proc/self/exe").parent_path() / "larder-check-lmdb";
    const std::string limited = "trap '' XFSZ; ulimit -f 64; exec " + program + " \"$@\"";
    const std::string path = directory_ / "limited";
    std::ofstream(path) << "#!/bin/bash\n" << limited << "\n";
    fs::permissions(path, fs::perms::owner_all);
    EXPECT_EQ(check({.renew = true, .program = path}).value(), std::nullopt);
    EXPECT_EQ(fs::file_size(environment_ + "/data.mdb"), bytes);
    EXPECT_FALSE(fs::exists(environment_ + "/renewed"));
    EXPECT_EQ(rows_now(), rows_);
}

TEST_F(LmdbCheck, TruncatedFileIsDamage) {
    fs::resize_file(environment_ + "/data.mdb", fs::file_size(environment_ + "/data.mdb") - 4096);
    EXPECT_THAT(check().value(), Optional(HasSubstr("truncated")));
}

TEST_F(LmdbCheck, ForeignDatabaseIsDamage) {
    with_database("other", [](MDB_txn*, MDB_dbi) {});
    EXPECT_THAT(check().value(), Optional(HasSubstr("foreign database")));
}

TEST_F(LmdbCheck, DamagedEnvironmentIsNotRenewed) {
    with_database("other", [](MDB_txn*, MDB_dbi) {});
    EXPECT_TRUE(check({.renew = true}).value());
    EXPECT_TRUE(check().value());
}

TEST_F(LmdbCheck, MissingProgramIsAnErrorThatNamesIt) {
    const auto found = check({.program = directory_ / "no/larder-check-lmdb"});
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, ErrorCode::not_found);
    EXPECT_THAT(found.error().message, HasSubstr(directory_ / "no/larder-check-lmdb"));
    // The error comes at the first start, although there is nothing to check yet.
    fs::remove_all(environment_);
    EXPECT_FALSE(check({.program = directory_ / "no/larder-check-lmdb"}));
}

TEST_F(LmdbCheck, CrashOfTheProgramIsDamage) {
    EXPECT_THAT(check_with_script("kill -SEGV $$").value(), Optional(HasSubstr("SIGSEGV")));
    EXPECT_THAT(check_with_script("kill -BUS $$").value(), Optional(HasSubstr("SIGBUS")));
    EXPECT_THAT(check_with_script("echo 'assertion failed: x' >&2; kill -ABRT $$").value(),
                Optional(HasSubstr("assertion failed: x")));
}

TEST_F(LmdbCheck, ProgramEndedBySomeoneElseIsAnError) {
    for (const std::string signal : {"TERM", "KILL", "INT"}) {
        const auto found = check_with_script("kill -" + signal + " $$");
        ASSERT_FALSE(found) << signal;
        EXPECT_THAT(found.error().message, HasSubstr("SIG" + signal));
    }
}

TEST_F(LmdbCheck, ExitCodeTellsDamageFromAFailedCheck) {
    EXPECT_EQ(check_with_script("exit 0").value(), std::nullopt);
    EXPECT_THAT(check_with_script("echo; echo 'keys are out of order'; exit 1").value(),
                Optional(HasSubstr("out of order")));
    EXPECT_THAT(check_with_script("exit 77").value(), Optional(HasSubstr("77")));
    EXPECT_EQ(check_with_script("echo 'No space left on device'; exit 3").value(), std::nullopt);
    const auto unchecked = check_with_script("echo 'Permission denied'; exit 2");
    ASSERT_FALSE(unchecked);
    EXPECT_THAT(unchecked.error().message, HasSubstr("Permission denied"));
    EXPECT_FALSE(check_with_script("exit 127"));
}

TEST_F(LmdbCheck, DamageThatASecondCheckDoesNotFindIsNone) {
    const std::string found_once = directory_ / "found";
    EXPECT_EQ(check_with_script("[ -e " + found_once + " ] && exit 0; touch " + found_once +
                                "; echo 'Cannot allocate memory'; exit 1")
                  .value(),
              std::nullopt);
}

TEST_F(LmdbCheck, DamageIsReportedOnlyIfTwoChecksFindIt) {
    const std::string tries = directory_ / "tries";
    const auto nth = [&](const std::string& codes) {
        fs::remove(tries);
        return check_with_script("echo x >>" + tries + "; set -- " + codes + "; shift $(($(wc -l <" + tries +
                                 ") - 1)); echo reason $1; exit $1");
    };
    EXPECT_EQ(nth("2 0").value(), std::nullopt) << "memory was short for a moment";
    EXPECT_THAT(nth("2 1 1").value(), Optional(HasSubstr("reason 1")));
    EXPECT_EQ(nth("2 1 0").value(), std::nullopt);
    EXPECT_FALSE(nth("1 2"));
    EXPECT_FALSE(nth("2 2"));
}

TEST_F(LmdbCheck, UnreadableDiskIsAnErrorWithItsErrno) {
    const auto found = check_with_script("echo 'Input/output error'; exit 4");
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().system_errno, EIO);
    EXPECT_THAT(found.error().message, HasSubstr("Input/output error"));
}

TEST_F(LmdbCheck, DamagedNumberOfPagesIsDamage) {
    const std::string path = environment_ + "/data.mdb";
    std::string good;
    {
        std::ifstream file(path, std::ios::binary);
        good.assign(std::istreambuf_iterator<char>(file), {});
    }
    constexpr std::size_t kLastPage = 136;  // in each of the first two pages
    for (const int bit : {30, 40, 47, 52, 63}) {
        std::string bad = good;
        for (const std::size_t page : {0u, 4096u}) bad[page + kLastPage + bit / 8] ^= static_cast<char>(1 << (bit % 8));
        std::ofstream(path, std::ios::binary) << bad;
        EXPECT_THAT(check().value(), Optional(HasSubstr("truncated"))) << bit;
    }
    constexpr std::size_t kMapBytes = 32;
    for (const int bit : {40, 52, 63}) {
        std::string bad = good;
        for (const std::size_t page : {0u, 4096u}) bad[page + kMapBytes + bit / 8] ^= static_cast<char>(1 << (bit % 8));
        std::ofstream(path, std::ios::binary) << bad;
        EXPECT_EQ(check({.renew = true}).value(), std::nullopt) << bit << ": LMDB maps what its owner asks for";
        EXPECT_EQ(rows_now(), rows_) << bit;
    }
}

TEST_F(LmdbCheck, ProgramWithoutProgressIsDamage) {
    EXPECT_THAT(check_with_script("exec sleep 600", 100).value(), Optional(HasSubstr("no progress")));
}

TEST_F(LmdbCheck, ProgramWithProgressIsWaitedFor) {
    EXPECT_EQ(check_with_script("for i in 1 2 3 4; do echo; sleep 0.5; done", 1500).value(), std::nullopt);
}

TEST_F(LmdbCheck, ProgramInheritsNoDescriptor) {
    constexpr int kHigh = 200;
    ASSERT_EQ(::dup2(STDERR_FILENO, kHigh), kHigh);
    EXPECT_EQ(check_with_script("[ ! -e /proc/$$/fd/200 ]").value(), std::nullopt);
    ::close(kHigh);
}

}  // namespace
}  // namespace larder
