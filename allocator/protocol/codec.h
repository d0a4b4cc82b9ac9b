#pragma once

// The JSON of the messages between nodes and their allocator, both ways: node daemons, the allocator, its state on
// disk, tests and fuzzers all use these functions. Reading is strict: an unknown key, a missing key or a wrong type is
// an error that names the path, such as jobs[2].bytes. Empty optionals and unlimited rates are left out.
//
// Versions let a cluster be upgraded node by node. A node writes its first report in the oldest version. The answer's
// Larder-Protocol header names the newest version that the allocator knows; from then on the node writes the newest one
// that both know and says so in the query (?protocol=2). The allocator answers in the version of the report.
//   1: the keys listed in codec.cc may be missing.
//   2: every key is there.
//   3: a job may have the key "user". A plan names its peers: "peers" has objects of a node and an endpoint; before,
//      endpoints.
//   4: a plan may have the key "warm", a report the key "warmed".
//   5: a report may have the key "clock_us", a job of it "waits".
//   6: a plan has the key "peers_etag", a report may have it. A plan may lack "peers".
// A new key needs a new version: readers of older versions refuse it.

#include <boost/json/object.hpp>
#include <boost/json/storage_ptr.hpp>

#include <cstdint>
#include <string_view>

#include "allocator/protocol/job_registration.h"
#include "allocator/protocol/node_plan.h"
#include "allocator/protocol/node_report.h"
#include "base/error.h"
#include "base/server/http_message.h"
#include "base/server/json_reader.h"

namespace larder::allocator {

inline constexpr unsigned kProtocolOldest = 1;
inline constexpr unsigned kProtocolNewest = 6;
inline constexpr unsigned kProtocolWithUsers = 3;
inline constexpr unsigned kProtocolWithWarming = 4;
inline constexpr unsigned kProtocolWithWaits = 5;
inline constexpr unsigned kProtocolWithPeersEtag = 6;
inline constexpr const char* kProtocolHeader = "Larder-Protocol";
inline constexpr const char* kProtocolQuery = "protocol";

// Reads a version; invalid_argument if `text` is not a number from kProtocolOldest to `newest`.
Result<unsigned> parse_protocol(std::string_view text, unsigned newest = kProtocolNewest);

// Returns the newest version that this node and the allocator that sent `response` both know. An allocator that names
// no version knows only the oldest.
unsigned common_protocol(const HttpResponse& response);

// `where` is put before paths in errors. A report of an earlier version is written without the keys that later ones
// brought. Who sets "user" must know that the reader has version 3. What is written has its memory from `storage`.
boost::json::object to_json(const NodeReport& report, unsigned version = kProtocolNewest,
                            boost::json::storage_ptr storage = {});
Result<NodeReport> read_node_report(const boost::json::object& object, std::string_view where,
                                    unsigned version = kProtocolNewest);

// A lease's end is sent as `lease_ms`, counted from `now_ns`, because the clocks of nodes are not compared. A reader
// passes the time at which it sent its report, so that its lease ends no later than the allocator's account of it. Only
// a report of version 6 or later can be answered without peers.
boost::json::object to_json(const NodePlan& plan, std::int64_t now_ns, unsigned version = kProtocolNewest,
                            boost::json::storage_ptr storage = {});
Result<NodePlan> read_node_plan(const boost::json::object& object, std::string_view where, std::int64_t now_ns,
                                unsigned version = kProtocolNewest);

// People write registrations: every key but the name has a default in all versions.
boost::json::object to_json(const JobRegistration& job);
Result<JobRegistration> read_job_registration(const boost::json::object& object, std::string_view where);
// Reads the keys of a registration from an object that may have others.
JobRegistration read_job_registration(JsonReader& reader);

}  // namespace larder::allocator
