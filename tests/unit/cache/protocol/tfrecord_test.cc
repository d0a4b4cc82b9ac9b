// TFRecord: a record's data is found where its header says, and both checksums are verified.

#include "cache/protocol/tfrecord.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/foreign_format_files.h"
#include "tests/support/text.h"

namespace larder::protocol {

using test::as_bytes;
namespace {

using ::testing::HasSubstr;

Result<std::vector<std::string>> records_of(const std::string& file) {
    test::MemoryReader source(file);
    TfrecordReader reader(source);
    std::vector<std::string> records;
    for (;;) {
        const auto record = reader.next();
        if (!record) return std::unexpected(record.error());
        if (!*record) return records;
        const std::string whole = file.substr((*record)->offset, (*record)->bytes);
        const auto data = record_data(as_bytes(whole));
        if (!data) return std::unexpected(data.error());
        records.emplace_back(reinterpret_cast<const char*>(data->data()), data->size());
    }
}

std::string error_of(const std::string& file) {
    const auto records = records_of(file);
    return records ? "no error" : records.error().message;
}

TEST(Tfrecord, MaskedCrcMatchesTensorflow) {
    // The CRC32C of "123456789" is 0xe3069283; rotated right by 15 bits, plus 0xa282ead8.
    EXPECT_EQ(masked_crc(as_bytes("123456789")), ((0xe3069283u >> 15) | (0xe3069283u << 17)) + 0xa282ead8u);
}

TEST(Tfrecord, RecordsAreReadBack) {
    const std::vector<std::string> records{"one", "", std::string(100'000, 'z'), "four"};
    const auto read = records_of(test::tfrecord_file(records));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, records);
    EXPECT_TRUE(records_of("")->empty());
}

TEST(Tfrecord, ErrorsSayWhatIsWrongAndWhere) {
    const std::string file = test::tfrecord_file({"one", "two"});
    EXPECT_THAT(error_of(file.substr(0, 25)), HasSubstr("at offset 19: the file ends 6 bytes into a record"));
    EXPECT_THAT(error_of(file.substr(0, 37)), HasSubstr("at offset 19: a record of 3 bytes goes past the end"));
    std::string length = file;
    length[19] ^= 1;
    EXPECT_THAT(error_of(length), HasSubstr("at offset 19: the length of a record does not match its checksum: the "
                                            "file is damaged, or is no TFRecord file"));
    std::string data = file;
    data[32] ^= 1;
    EXPECT_THAT(error_of(data), HasSubstr("the data of the record does not match its checksum"));
    EXPECT_THAT(error_of("\x1f\x8b" + std::string(30, 'g')), HasSubstr("gzip"));
}

TEST(Tfrecord, RecordOfTheWrongLengthIsRefused) {
    const std::string record = test::tfrecord_file({"hello"});
    for (std::size_t bytes = 0; bytes < record.size(); ++bytes) {
        EXPECT_FALSE(record_data(as_bytes(record.substr(0, bytes)))) << bytes;
    }
    EXPECT_TRUE(record_data(as_bytes(record)));
    EXPECT_FALSE(record_data(as_bytes(record + "x")));
}

}  // namespace
}  // namespace larder::protocol
