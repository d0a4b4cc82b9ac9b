#pragma once

// Arrow's own copy of the schema in a file of Parquet ("ARROW:schema"): base64 of an IPC message, whose metadata is the
// flatbuffer Message of format/Message.fbs and Schema.fbs in apache/arrow.
//
// Types that Parquet lacks, such as durations, are in it alone, so files that are decoded by one copy must have the
// same fields. Metadata of the whole schema may differ: pandas puts the number of a file's rows there.
//
// The function is pure. Whoever wrote the file chose the bytes, so every offset is checked.

#include <string>
#include <string_view>

namespace larder::protocol {

// Returns bytes that are equal only if the fields are: the message from its vector of fields on. Writers put what the
// fields consist of after that vector, and the schema's metadata before. Returns the value itself if it is no such
// message.
std::string arrow_schema_fields(std::string_view value);

}  // namespace larder::protocol
