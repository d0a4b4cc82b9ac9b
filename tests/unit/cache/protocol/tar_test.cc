// TarReader and split_sample on archives that libarchive and GNU tar write in every dialect, on archives whose headers
// are written here byte by byte, and on broken ones.

#include "cache/protocol/tar.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cstring>
#include <map>

#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"
#include "tests/support/text.h"

extern char** environ;

namespace larder::protocol {

using test::as_bytes;
using test::text_of;
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> as_bytes(std::string_view text) {
    return std::as_bytes(std::span(text));
}
std::string full_name(const TarMember& member) {
    return (member.prefix.empty() ? "" : std::string(member.prefix) + "/") + std::string(member.name);
}

// Returns a copy that is valid only until the next call, like a file's buffer.
class CopyingSource final : public ByteSource {
public:
    explicit CopyingSource(std::string_view archive) : archive_(archive) {}
    std::uint64_t size_bytes() const override { return archive_.size(); }
    Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) override {
        std::ranges::fill(copy_, std::byte{0xee});
        const auto wanted = as_bytes(archive_.substr(offset, bytes));
        copy_.assign(wanted.begin(), wanted.end());
        bytes_read += bytes;
        return copy_;
    }
    std::uint64_t bytes_read = 0;

private:
    std::string_view archive_;
    std::vector<std::byte> copy_;
};

struct Listed {
    char type;
    std::string name;
    std::string content;
    friend bool operator==(const Listed&, const Listed&) = default;
};

Result<std::vector<Listed>> list(TarReader reader, std::string_view archive) {
    std::vector<Listed> members;
    std::uint64_t end = 0;
    for (;;) {
        auto next = reader.next();
        if (!next) return std::unexpected(next.error());
        if (!*next) return members;
        const TarMember& member = **next;
        EXPECT_EQ(member.offset, end) << "members follow each other";
        EXPECT_GE(member.data_offset, member.offset + kTarBlockBytes);
        end = member.end_offset;
        members.push_back(
            {member.type, full_name(member), std::string(archive.substr(member.data_offset, member.data_bytes))});
    }
}

Result<std::vector<Listed>> list(std::string_view archive) {
    return list(TarReader(as_bytes(archive)), archive);
}

// A header block in POSIX layout, and its payload.
struct HandMade {
    std::string name;
    std::string content;
    char type = '0';
    std::string prefix;
    std::string magic = std::string(
        "ustar\0"
        "00",
        8);
    std::optional<std::string> size_field;
};

std::string bytes_of(const HandMade& member) {
    std::string header(kTarBlockBytes, '\0');
    const auto put = [&](std::size_t at, std::string_view text) { header.replace(at, text.size(), text); };
    put(0, member.name);
    put(100, "0000644");
    char size[13];
    std::snprintf(size, sizeof size, "%011zo", member.content.size());
    put(124, member.size_field ? std::string_view(*member.size_field) : std::string_view(size));
    header[156] = member.type;
    put(257, member.magic);
    put(345, member.prefix);
    put(148, "        ");
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    char checksum[8];
    std::snprintf(checksum, sizeof checksum, "%06o", sum);
    put(148, std::string_view(checksum, 7));
    std::string content = member.content;
    content.resize((content.size() + kTarBlockBytes - 1) / kTarBlockBytes * kTarBlockBytes, '\0');
    return header + content;
}

std::string pax_record(const std::string& key, const std::string& value) {
    const std::string rest = " " + key + "=" + value + "\n";
    std::size_t length = rest.size() + 1;
    while (std::to_string(length).size() + rest.size() != length) ++length;
    return std::to_string(length) + rest;
}

const std::string kEnd(2 * kTarBlockBytes, '\0');

std::string error_of(std::string_view archive) {
    const auto listed = list(archive);
    return listed ? "no error" : listed.error().message;
}

TEST(TarReader, ReadsEveryDialectOfLibarchiveFromBytesAndFromASource) {
    test::TempDirectory directory;
    std::vector<test::NamedBytes> members{
        {"a.txt", "hello"}, {"empty.bin", ""}, {"dir/", ""}, {"dir/b.jpg", test::random_bytes(1023, 1)}};
    members.push_back({std::string(70, 'd') + "/" + std::string(60, 'f') + ".png", test::random_bytes(512, 2)});
    for (const auto dialect : {test::TarDialect::ustar, test::TarDialect::pax, test::TarDialect::gnu}) {
        SCOPED_TRACE(test::name(dialect));
        if (dialect != test::TarDialect::ustar) {
            members.push_back(
                {std::string(200, 'x') + "/" + std::string(180, 'y') + ".jpeg", test::random_bytes(3000, 3)});
        }
        test::write_tar(directory / "a.tar", dialect, members);
        const std::string archive = test::read_bytes(directory / "a.tar");
        std::vector<Listed> expected;
        for (const auto& member : members)
            expected.push_back({member.name.ends_with('/') ? '5' : '0', member.name, member.content});

        auto listed = list(archive);
        ASSERT_TRUE(listed) << listed.error().message;
        EXPECT_EQ(*listed, expected);
        CopyingSource source(archive);
        listed = list(TarReader(source), archive);
        ASSERT_TRUE(listed) << listed.error().message;
        EXPECT_EQ(*listed, expected);
        EXPECT_LT(source.bytes_read, 512u * 5 * members.size()) << "payloads are not read";
        if (dialect != test::TarDialect::ustar) members.pop_back();
    }
}

void run_tar(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t child = 0;
    ASSERT_EQ(::posix_spawnp(&child, argv[0], nullptr, nullptr, argv.data(), environ), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
}

TEST(TarReader, ReadsEveryDialectOfGnuTar) {
    test::TempDirectory directory;
    std::map<std::string, std::string> files{
        {"a.txt", "hello"},
        {"caf\xc3\xa9/\xe6\xbc\xa2\xe5\xad\x97.jpg", test::random_bytes(777, 1)},
        {"deep/" + std::string(60, 'p') + "/" + std::string(70, 'q') + "/" + std::string(40, 'r') + ".bin",
         test::random_bytes(5000, 2)},
    };
    for (const std::string format : {"ustar", "pax", "gnu", "oldgnu", "v7"}) {
        SCOPED_TRACE(format);
        const auto tree = directory.path() / format;
        if (format == "v7") std::erase_if(files, [](const auto& file) { return file.first.size() > 99; });
        for (const auto& [name, content] : files) test::write_file(tree / name, content);
        run_tar({"tar", "--create", "--format=" + format, "--file=" + (directory / (format + ".tar")),
                 "--directory=" + tree.string(), "."});
        const std::string archive = test::read_bytes(directory / (format + ".tar"));
        const auto listed = list(archive);
        ASSERT_TRUE(listed) << listed.error().message;
        std::map<std::string, std::string> found;
        for (const auto& member : *listed) {
            if (member.type == '0') found[member.name] = member.content;
        }
        std::map<std::string, std::string> expected;
        for (const auto& [name, content] : files) expected["./" + name] = content;
        EXPECT_EQ(found, expected);
    }
}

TEST(TarReader, AcceptsEveryStandardHeaderVariant) {
    const std::string base256 = std::string("\x80\0\0\0\0\0\0\0\0\0\0\x03", 12);
    const auto listed = list(
        bytes_of({.name = "prefixed.jpg", .content = "1", .prefix = "some/dir"}) +
        bytes_of({.name = "gnu.jpg", .content = "2", .prefix = "12345670123", .magic = "ustar  "}) +
        bytes_of({.name = "big.jpg", .content = "abc", .size_field = base256}) +
        bytes_of({.name = "old.jpg", .content = "4", .type = '\0', .magic = ""}) +
        bytes_of({.name = "olddir/", .type = '\0', .magic = ""}) +
        bytes_of({.name = "link.jpg", .type = '2', .size_field = "00000001000"}) +
        bytes_of({.name = "h", .content = pax_record("comment", "anything"), .type = 'g'}) +
        bytes_of({.name = "h", .content = pax_record("path", "renamed.jpg") + pax_record("size", "5"), .type = 'x'}) +
        bytes_of({.name = "short", .content = "12345", .size_field = "00000000000"}));
    ASSERT_TRUE(listed) << listed.error().message;
    const std::vector<Listed> expected{{'0', "some/dir/prefixed.jpg", "1"},
                                       {'0', "gnu.jpg", "2"},
                                       {'0', "big.jpg", "abc"},
                                       {'0', "old.jpg", "4"},
                                       {'5', "olddir/", ""},
                                       {'2', "link.jpg", ""},
                                       {'0', "renamed.jpg", "12345"}};
    EXPECT_EQ(*listed, expected) << "also without zero blocks at the end";
}

TEST(TarReader, AcceptsChecksumsOfSignedBytes) {
    std::string archive = bytes_of({.name = "caf\xc3\xa9.jpg", .content = "1"});
    unsigned sum = 0;
    std::memset(archive.data() + 148, ' ', 8);
    for (const char c : archive.substr(0, kTarBlockBytes)) sum += static_cast<unsigned>(static_cast<signed char>(c));
    char checksum[8];
    std::snprintf(checksum, sizeof checksum, "%06o", sum);
    archive.replace(148, 7, checksum, 7);
    const auto listed = list(archive);
    ASSERT_TRUE(listed) << listed.error().message;
    EXPECT_EQ(listed->front().name, "caf\xc3\xa9.jpg");
    archive[149] ^= 1;
    EXPECT_THAT(error_of(archive), HasSubstr("checksum"));
}

TEST(TarReader, StopsAtTheFirstZeroBlock) {
    const auto listed = list(bytes_of({.name = "a.jpg", .content = "1"}) + kEnd + "anything");
    ASSERT_TRUE(listed);
    EXPECT_EQ(listed->size(), 1u);
}

TEST(TarReader, ErrorsSayWhyAndWhereAnArchiveIsBroken) {
    const std::string first = bytes_of({.name = "a.jpg", .content = std::string(600, 'a')});  // 1536 bytes
    const std::string second = bytes_of({.name = "b.jpg", .content = "b"});

    EXPECT_THAT(error_of(""), HasSubstr("the file is empty"));
    EXPECT_THAT(error_of("some text"), HasSubstr("shorter than a tar header"));
    EXPECT_THAT(error_of(std::string(2000, 'x')), HasSubstr("at offset 0: not a tar"));
    std::string flipped = first + second;
    flipped[1536 + 3] = 'X';
    EXPECT_THAT(error_of(flipped), HasSubstr("at offset 1536: the header's checksum does not match"));
    EXPECT_THAT(error_of((first + second).substr(0, 1536 + 100)),
                HasSubstr("at offset 1536: the archive ends within a header"));
    EXPECT_THAT(error_of((first + second).substr(0, 1536 + 512)),
                HasSubstr("at offset 1536: the archive ends within the member b.jpg"));
    EXPECT_THAT(error_of(first.substr(0, 900)), HasSubstr("at offset 0: the archive ends within the member a.jpg"));
    EXPECT_THAT(error_of(first + bytes_of({.name = "n", .content = "name", .type = 'L'}) + kEnd),
                HasSubstr("no member follows"));
    EXPECT_THAT(error_of(first + bytes_of({.name = "n", .content = "name", .type = 'L'})),
                HasSubstr("the archive ends within a header"));
    EXPECT_THAT(error_of(bytes_of({.name = "n", .content = "7 a=b\n", .type = 'x'}) + second),
                HasSubstr("malformed record"));
    EXPECT_THAT(error_of(bytes_of({.name = "n", .content = "99999999999999999999 a=b\n", .type = 'x'}) + second),
                HasSubstr("malformed record"));
    EXPECT_THAT(error_of(bytes_of({.name = "n", .content = pax_record("size", "-1"), .type = 'x'}) + second),
                HasSubstr("malformed size"));
    // Padded to whole blocks, this size is 2^64.
    EXPECT_THAT(
        error_of(bytes_of({.name = "n", .content = pax_record("size", "18446744073709551615"), .type = 'x'}) + second),
        HasSubstr("truncated"));
    EXPECT_THAT(error_of(bytes_of({.name = "n", .content = pax_record("path", "p"), .type = 'g'}) + second),
                HasSubstr("global PAX header"));
    EXPECT_THAT(error_of(bytes_of({.name = "n", .content = pax_record("GNU.sparse.major", "1"), .type = 'x'}) + second),
                HasSubstr("sparse"));
    EXPECT_THAT(error_of(bytes_of({.name = "sparse", .type = 'S'})), HasSubstr("sparse"));
    EXPECT_THAT(error_of(bytes_of({.name = "n", .size_field = std::string(12, '\xff')})), HasSubstr("impossible size"));
    EXPECT_THAT(error_of(bytes_of({.name = "n", .size_field = std::string("\x80") + std::string(11, '\x7f')})),
                HasSubstr("impossible size"));
    EXPECT_THAT(error_of(bytes_of({.name = "n", .size_field = "0000000009z"})), HasSubstr("impossible size"));
    EXPECT_THAT(error_of(bytes_of({.name = "n", .type = 'x', .size_field = "77777777777"})),
                HasSubstr("impossible size"));
    EXPECT_THAT(
        error_of(bytes_of({.name = "n", .size_field = std::string("\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12)})),
        HasSubstr("truncated"));
}

TEST(TarReader, ErrorNamesTheUnsupportedCompression) {
    const auto padded = [](std::string head) { return head + std::string(1024 - head.size(), 'z'); };
    EXPECT_THAT(error_of("\x1f\x8b\x08"), HasSubstr("compressed tar (gzip) is not supported"));
    EXPECT_THAT(error_of(padded("\x1f\x8b\x08")), HasSubstr("compressed tar (gzip) is not supported"));
    EXPECT_THAT(error_of(padded("BZh9")), HasSubstr("compressed tar (bzip2)"));
    EXPECT_THAT(error_of(padded("\xfd"
                                "7zXZ")),
                HasSubstr("compressed tar (xz)"));
    EXPECT_THAT(error_of(padded("\x28\xb5\x2f\xfd")), HasSubstr("compressed tar (zstd)"));
}

TEST(TarReader, TruncationIsAnErrorExceptAtMemberBoundaries) {
    const std::string archive = bytes_of({.name = "h", .content = pax_record("path", "long.jpg"), .type = 'x'}) +
                                bytes_of({.name = "a", .content = "1"}) + bytes_of({.name = "b", .content = "2"}) +
                                kEnd;
    for (std::size_t bytes = 0; bytes < archive.size(); ++bytes) {
        const auto listed = list(std::string_view(archive).substr(0, bytes));
        const bool at_boundary = bytes == 2048 || bytes == 3072 || bytes >= 3584;
        EXPECT_EQ(listed.has_value(), at_boundary) << bytes;
    }
}

TEST(SampleKey, FollowsWebDatasetRules) {
    const auto key = [](std::string_view name, std::string_view prefix = {}) -> std::string {
        const auto found = sample_key(TarMember{.type = '0', .prefix = prefix, .name = name});
        return found ? std::string(found->stem) + "|" + std::string(found->suffix) : "none";
    };
    EXPECT_EQ(key("a.jpg"), "a|jpg");
    EXPECT_EQ(key("a.seg.png"), "a|seg.png");
    EXPECT_EQ(key("dir.v2/a.jpg"), "dir.v2/a|jpg");
    EXPECT_EQ(key("./a.jpg"), "./a|jpg");
    EXPECT_EQ(key("a."), "a|");
    EXPECT_EQ(key("a"), "none");
    EXPECT_EQ(key("dir.v2/a"), "none");
    EXPECT_EQ(key(".hidden"), "none");
    EXPECT_EQ(key("__meta__.json"), "__meta__|json");
    EXPECT_EQ(key("__meta__"), "none");
    EXPECT_EQ(key("__meta__/info.json"), "none");
    EXPECT_EQ(key("info.json", "__meta__"), "none");
    EXPECT_EQ(key("__meta/info.json"), "__meta/info|json");
}

TEST(SplitSample, ReturnsKeyAndFields) {
    const std::string sample = bytes_of({.name = "dir", .type = '5'}) +
                               bytes_of({.name = "a.JPG", .content = "picture", .prefix = "dir"}) +
                               bytes_of({.name = "__x__/meta.txt", .content = "no"}) +
                               bytes_of({.name = "a.cls", .content = "7", .prefix = "dir"});
    std::vector<TarField> fields{{"before", {}}};
    std::deque<std::string> texts;
    const auto key = split_sample(as_bytes(sample), fields, texts);
    ASSERT_TRUE(key) << key.error().message;
    EXPECT_EQ(*key, "dir/a");
    ASSERT_EQ(fields.size(), 3u) << "appended to what was there";
    EXPECT_EQ(fields[1].name, "jpg");
    EXPECT_EQ(text_of(fields[1].bytes), "picture");
    EXPECT_EQ(fields[2].name, "cls");
    EXPECT_EQ(text_of(fields[2].bytes), "7");
}

TEST(SplitSample, PointsIntoTheSampleInsteadOfCopyingText) {
    const std::string path = std::string(150, 'p') + "/a.jpg";
    const std::string sample = bytes_of({.name = "h", .content = pax_record("path", path), .type = 'x'}) +
                               bytes_of({.name = "short", .content = "1"});
    std::vector<TarField> fields;
    std::deque<std::string> texts;
    const auto key = split_sample(as_bytes(sample), fields, texts);
    ASSERT_TRUE(key);
    EXPECT_EQ(*key, std::string(150, 'p') + "/a");
    EXPECT_EQ(fields.front().name, "jpg");
    EXPECT_TRUE(texts.empty());
    EXPECT_GE(key->data(), sample.data());
    EXPECT_LT(key->data(), sample.data() + sample.size());
}

TEST(SplitSample, RefusesBytesWithoutASample) {
    std::vector<TarField> fields;
    std::deque<std::string> texts;
    EXPECT_FALSE(split_sample({}, fields, texts));
    EXPECT_FALSE(split_sample(as_bytes(bytes_of({.name = "dir", .type = '5'})), fields, texts));
    EXPECT_FALSE(split_sample(as_bytes(bytes_of({.name = "a.jpg", .content = "1"}).substr(0, 700)), fields, texts));
}

}  // namespace
}  // namespace larder::protocol
