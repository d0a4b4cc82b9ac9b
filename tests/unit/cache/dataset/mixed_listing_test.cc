// Listings in which only some of the files are shards.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/dataset/detect_format.h"

namespace larder::cache {
namespace {

using ::testing::HasSubstr;

MixedListing mixed(const std::vector<std::string>& paths, protocol::Format format, ObjectListing& listing) {
    for (const std::string& path : paths) listing.add(path, 1, 0);
    listing.sort();
    return mixed_listing(listing, format);
}

TEST(MixedListing, DoubtNamesOddFilesAmongShards) {
    ObjectListing listing;
    const MixedListing raw =
        mixed({"a.tar", "b.tar", "c.tar", "README.txt", "notes.md"}, protocol::Format::raw, listing);
    EXPECT_THAT(raw.odd_paths, testing::ElementsAre("README.txt", "notes.md"));
    EXPECT_THAT(raw.doubt, HasSubstr("3 of 5 files are tars, but README.txt and 1 more are not: each file is taken as "
                                     "one sample (raw); give --format webdataset"));
    ObjectListing records;
    EXPECT_THAT(mixed({"a.tfrecord", "b.jpg"}, protocol::Format::raw, records).doubt,
                HasSubstr("1 of 2 files is a TFRecord file, but b.jpg is not"));
}

TEST(MixedListing, OneTarAmongManyFilesIsOdd) {
    ObjectListing listing;
    const MixedListing raw = mixed({"1.jpg", "2.jpg", "3.jpg", "old.tar"}, protocol::Format::raw, listing);
    EXPECT_THAT(raw.odd_paths, testing::ElementsAre("old.tar"));
    EXPECT_THAT(raw.doubt, HasSubstr("1 of 4 files is a tar, but 1.jpg and 2 more are not"));
}

TEST(MixedListing, FoundOrGivenFormatGivesNoDoubt) {
    ObjectListing some_tars;
    const MixedListing tars = mixed({"a.tar", "README.txt"}, protocol::Format::webdataset, some_tars);
    EXPECT_THAT(tars.odd_paths, testing::ElementsAre("README.txt"));
    EXPECT_EQ(tars.doubt, "");
    ObjectListing all_tars;
    EXPECT_TRUE(mixed({"a.tar", "b.tar"}, protocol::Format::webdataset, all_tars).odd_paths.empty());
    ObjectListing no_tars;
    EXPECT_EQ(mixed({"a.jpg", "b.txt"}, protocol::Format::raw, no_tars).doubt, "");
}

}  // namespace
}  // namespace larder::cache
