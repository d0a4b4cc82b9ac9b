#include "allocator/protocol/codec.h"

#include <boost/describe.hpp>
#include <boost/json.hpp>
#include <boost/mp11.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace larder::allocator {
namespace json = boost::json;

BOOST_DESCRIBE_STRUCT(DatasetReport, (),
                      (name, size_bytes, quota_memory_bytes, quota_disk_bytes, cached_memory_bytes, cached_disk_bytes,
                       quota_held))
BOOST_DESCRIBE_STRUCT(WaitsReport, (), (since_us, until_us, counted_us, batches, shortest_us, lengths_us))
BOOST_DESCRIBE_STRUCT(JobReport, (),
                      (name, dataset, ranks, bytes, busy_s, demand_bytes_per_second, remote_bytes, unread_bytes,
                       unread_cached_bytes, epoch, user, waits))
BOOST_DESCRIBE_STRUCT(NodeReport, (),
                      (node, instance, state_directory, lease_applied, rates, scans, gpus, memory_bytes, disk_bytes,
                       disk_read_bytes_per_second, nic_bytes_per_second, peer_group, peer_endpoint, peers_etag,
                       datasets, jobs, warmed, clock_us))
BOOST_DESCRIBE_STRUCT(DatasetQuota, (), (name, memory_bytes, disk_bytes))
BOOST_DESCRIBE_STRUCT(LeasedRate, (), (job, bytes_per_second))
BOOST_DESCRIBE_STRUCT(PeerNode, (), (node, endpoint))
BOOST_DESCRIBE_STRUCT(JobRegistration, (),
                      (name, weight, epochs, ideal_bytes_per_second, bandwidth_floor_bytes_per_second,
                       bandwidth_cap_bytes_per_second, user, dataset, cache_bytes))

namespace {

// A lease and a plan as they are sent.
struct SentLease {
    std::uint64_t number = 0;
    std::uint64_t lease_ms = 0;
    double floor_bytes_per_second = 0;
    std::vector<LeasedRate> rates;
    bool cut = false;
};
struct SentPlan {
    std::uint64_t plan = 0;
    std::vector<DatasetQuota> quotas;
    std::optional<std::vector<PeerNode>> peers;
    std::uint64_t peers_etag = 0;
    SentLease lease;
    std::vector<std::string> warm;  // left out if empty
};
// As SentPlan is sent in versions 1 and 2.
struct SentPlan2 {
    std::uint64_t plan = 0;
    std::vector<DatasetQuota> quotas;
    std::vector<std::string> peers;
    SentLease lease;
};
constexpr unsigned kNamedPeers = 3;  // the first version in which peers have names
BOOST_DESCRIBE_STRUCT(SentLease, (), (number, lease_ms, floor_bytes_per_second, rates, cut))
BOOST_DESCRIBE_STRUCT(SentPlan, (), (plan, quotas, peers, peers_etag, lease, warm))
BOOST_DESCRIBE_STRUCT(SentPlan2, (), (plan, quotas, peers, lease))

constexpr std::array<std::string_view, 8> kOptionalInVersion1{"state_directory", "rates",         "scans", "quota_held",
                                                              "peer_group",      "peer_endpoint", "peers", "cut"};

constexpr std::array<std::string_view, 2> kLeftOutIfEmpty{"warm", "warmed"};

constexpr std::array<std::pair<std::string_view, unsigned>, 5> kSince{{{"warm", kProtocolWithWarming},
                                                                       {"warmed", kProtocolWithWarming},
                                                                       {"clock_us", kProtocolWithWaits},
                                                                       {"waits", kProtocolWithWaits},
                                                                       {"peers_etag", kProtocolWithPeersEtag}}};

bool is_known(std::string_view key, unsigned version) {
    return std::ranges::none_of(kSince,
                                [&](const auto& since) { return since.first == key && version < since.second; });
}

template <typename T>
using Members = boost::describe::describe_members<T, boost::describe::mod_public>;

template <typename T>
constexpr bool is_vector = false;
template <typename T>
constexpr bool is_vector<std::vector<T>> = true;
template <typename T>
constexpr bool is_optional = false;
template <typename T>
constexpr bool is_optional<std::optional<T>> = true;

// --- writing

// Writes into the memory of `storage`.
struct Writer {
    json::storage_ptr storage;
    unsigned version;

    template <typename Value>
    json::value value_of(const Value& value) const {
        if constexpr (is_vector<Value>) {
            json::array array(storage);
            array.reserve(value.size());
            for (const auto& item : value) array.push_back(value_of(item));
            return array;
        } else if constexpr (boost::describe::has_describe_members<Value>::value) {
            return object_of(value);
        } else {
            return json::value(value, storage);
        }
    }

    template <typename Value>
    void put(json::object& object, std::string_view key, const Value& value) const {
        if constexpr (is_optional<Value>) {
            if (value) object.emplace(key, value_of(*value));
        } else if constexpr (std::is_same_v<Value, double>) {
            if (std::isfinite(value)) object.emplace(key, value);
        } else {
            object.emplace(key, value_of(value));
        }
    }

    template <typename Message>
    json::object object_of(const Message& message) const {
        json::object object(boost::mp11::mp_size<Members<Message>>::value, storage);
        boost::mp11::mp_for_each<Members<Message>>([&](auto member) {
            if (is_known(member.name, version)) put(object, member.name, message.*member.pointer);
        });
        for (const std::string_view key : kLeftOutIfEmpty) {
            const json::value* const list = object.if_contains(key);
            if (list != nullptr && list->as_array().empty()) object.erase(key);
        }
        return object;
    }
};

// --- reading

template <typename Message>
Result<Message> read(const json::object& object, const std::string& where, unsigned version);

template <typename Value>
void take_scalar(JsonReader& reader, std::string_view key, Value& into) {
    if constexpr (is_optional<Value>) {
        if (!reader.has(key)) return;
        typename Value::value_type value{};
        take_scalar(reader, key, value);
        into = value;
    } else if constexpr (std::is_same_v<Value, std::string>) {
        into = reader.string(key);
    } else if constexpr (std::is_same_v<Value, bool>) {
        into = reader.boolean(key);
    } else if constexpr (std::is_same_v<Value, double>) {
        // The writer leaves out an infinite (unlimited) value: without its key, the infinite default stays.
        if (reader.has(key) || std::isfinite(into)) into = reader.number(key);
    } else {
        static_assert(std::is_unsigned_v<Value>);
        const std::uint64_t value = reader.unsigned_integer(key);
        if (value > std::numeric_limits<Value>::max()) reader.reject(key, "is too large");
        into = static_cast<Value>(value);
    }
}

template <typename Item>
Result<void> read_item(const json::value& value, const std::string& at, Item& into, unsigned version) {
    if constexpr (std::is_same_v<Item, std::string>) {
        if (!value.is_string()) return fail(ErrorCode::invalid_argument, at + " must be a string");
        into = value.as_string();
    } else if constexpr (std::is_same_v<Item, std::uint64_t>) {
        boost::system::error_code error;
        into = value.to_number<std::uint64_t>(error);
        if (!(value.is_int64() || value.is_uint64()) || error) {
            return fail(ErrorCode::invalid_argument, at + " must be an integer, not negative");
        }
    } else {
        if (!value.is_object()) return fail(ErrorCode::invalid_argument, at + " must be an object");
        auto item = read<Item>(value.as_object(), at, version);
        if (!item) return std::unexpected(item.error());
        into = std::move(*item);
    }
    return {};
}

// Reads a member that holds other values. The key is there, and its type was checked.
template <typename Value>
Result<void> read_nested(const json::value& value, const std::string& at, Value& into, unsigned version) {
    if constexpr (is_vector<Value>) {
        const json::array& array = value.as_array();
        into.resize(array.size());
        for (std::size_t i = 0; i < array.size(); ++i) {
            auto taken = read_item(array[i], at + "[" + std::to_string(i) + "]", into[i], version);
            if (!taken) return taken;
        }
        return {};
    } else if constexpr (is_optional<Value>) {
        return read_nested(value, at, into.emplace(), version);
    } else {
        return read_item(value, at, into, version);
    }
}

template <typename Value>
constexpr bool is_nested = is_vector<Value> || boost::describe::has_describe_members<Value>::value;
template <typename Value>
constexpr bool is_nested<std::optional<Value>> = is_nested<Value>;

template <typename Message>
Result<Message> read(const json::object& object, const std::string& where, unsigned version) {
    JsonReader reader(object, where);
    Message message;
    const auto is_left_out = [&](std::string_view key) {
        if (reader.has(key)) return false;
        const auto is_among = [key](const auto& keys) { return std::ranges::find(keys, key) != keys.end(); };
        return is_among(kLeftOutIfEmpty) || (version == 1 && is_among(kOptionalInVersion1));
    };
    boost::mp11::mp_for_each<Members<Message>>([&](auto member) {
        auto& into = message.*member.pointer;
        using Value = std::remove_reference_t<decltype(into)>;
        if (is_left_out(member.name)) return;
        if (!is_known(member.name, version)) return;  // `finish` refuses the key as unknown
        if constexpr (is_vector<Value>) {
            reader.array(member.name);
        } else if constexpr (is_optional<Value> && is_nested<Value>) {
            if constexpr (is_vector<typename Value::value_type>) {
                if (reader.has(member.name)) reader.array(member.name);
            } else {
                reader.optional_object(member.name);
            }
        } else if constexpr (is_nested<Value>) {
            reader.object(member.name);
        } else {
            take_scalar(reader, member.name, into);
        }
    });
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    Result<void> nested;
    boost::mp11::mp_for_each<Members<Message>>([&](auto member) {
        auto& into = message.*member.pointer;
        if constexpr (is_nested<std::remove_reference_t<decltype(into)>>) {
            const json::value* const value = object.if_contains(member.name);
            if (!nested || value == nullptr) return;
            nested = read_nested(*value, (where.empty() ? "" : where + ".") + member.name, into, version);
        }
    });
    if (!nested) return std::unexpected(nested.error());
    return message;
}

}  // namespace

Result<unsigned> parse_protocol(std::string_view text, unsigned newest) {
    unsigned version = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
    if (error == std::errc{} && end == text.data() + text.size() && version >= kProtocolOldest && version <= newest) {
        return version;
    }
    return fail(ErrorCode::invalid_argument, "\"" + std::string(text) +
                                                 "\" is not a protocol version known here: expected " +
                                                 std::to_string(kProtocolOldest) + " to " + std::to_string(newest));
}

unsigned common_protocol(const HttpResponse& response) {
    const auto named =
        std::ranges::find(response.headers, kProtocolHeader, [](const auto& header) { return header.first; });
    if (named == response.headers.end()) return kProtocolOldest;
    const auto version = parse_protocol(named->second, std::numeric_limits<unsigned>::max());
    return std::min(version.value_or(kProtocolOldest), kProtocolNewest);
}

json::object to_json(const NodeReport& report, unsigned version, json::storage_ptr storage) {
    return Writer{std::move(storage), version}.object_of(report);
}

Result<NodeReport> read_node_report(const json::object& object, std::string_view where, unsigned version) {
    return read<NodeReport>(object, std::string(where), version);
}

json::object to_json(const NodePlan& plan, std::int64_t now_ns, unsigned version, json::storage_ptr storage) {
    const Writer writer{std::move(storage), version};
    const std::int64_t left_ns = std::max<std::int64_t>(0, plan.lease.expires_ns - now_ns);
    const SentLease lease{.number = plan.lease.number,
                          .lease_ms = static_cast<std::uint64_t>(left_ns / 1'000'000),
                          .floor_bytes_per_second = plan.lease.floor_bytes_per_second,
                          .rates = plan.lease.rates,
                          .cut = plan.lease.cut};
    if (version >= kNamedPeers) {
        return writer.object_of(SentPlan{.plan = plan.plan,
                                         .quotas = plan.quotas,
                                         .peers = plan.peers,
                                         .peers_etag = plan.peers_etag,
                                         .lease = lease,
                                         .warm = plan.warm});
    }
    SentPlan2 sent{.plan = plan.plan, .quotas = plan.quotas, .peers = {}, .lease = lease};
    if (plan.peers) std::ranges::transform(*plan.peers, std::back_inserter(sent.peers), &PeerNode::endpoint);
    return writer.object_of(sent);
}

Result<NodePlan> read_node_plan(const json::object& object, std::string_view where, std::int64_t now_ns,
                                unsigned version) {
    // No allocator leases for longer (allocator_config.cc): a longer time is an error of its sender.
    constexpr std::uint64_t kLeaseMax_ms = 3'600'000;
    const auto plan_of = [&](auto& sent, std::optional<std::vector<PeerNode>>&& peers) {
        const auto lease_ms = static_cast<std::int64_t>(std::min(kLeaseMax_ms, sent.lease.lease_ms));
        return NodePlan{.plan = sent.plan,
                        .quotas = std::move(sent.quotas),
                        .peers = std::move(peers),
                        .peers_etag = 0,
                        .lease = {.number = sent.lease.number,
                                  .expires_ns = now_ns + lease_ms * 1'000'000,
                                  .floor_bytes_per_second = sent.lease.floor_bytes_per_second,
                                  .rates = std::move(sent.lease.rates),
                                  .cut = sent.lease.cut},
                        .warm = {}};
    };
    if (version >= kNamedPeers) {
        auto sent = read<SentPlan>(object, std::string(where), version);
        if (!sent) return std::unexpected(sent.error());
        if (version < kProtocolWithPeersEtag && !sent->peers) {
            return fail(ErrorCode::invalid_argument,
                        (where.empty() ? "" : std::string(where) + ".") + "peers is missing");
        }
        NodePlan plan = plan_of(*sent, std::move(sent->peers));
        plan.peers_etag = sent->peers_etag;
        plan.warm = std::move(sent->warm);
        return plan;
    }
    auto sent = read<SentPlan2>(object, std::string(where), version);
    if (!sent) return std::unexpected(sent.error());
    std::vector<PeerNode> peers;
    for (std::string& endpoint : sent->peers) peers.push_back({.node = {}, .endpoint = std::move(endpoint)});
    return plan_of(*sent, std::move(peers));
}

json::object to_json(const JobRegistration& job) {
    json::object object = Writer{{}, kProtocolNewest}.object_of(job);
    if (job.dataset.empty()) object.erase("dataset");
    if (job.cache_bytes == 0) object.erase("cache_bytes");
    return object;
}

JobRegistration read_job_registration(JsonReader& reader) {
    JobRegistration job;
    boost::mp11::mp_for_each<Members<JobRegistration>>([&](auto member) {
        const std::string_view key = member.name;
        if (key == "name" || reader.has(key)) take_scalar(reader, key, job.*member.pointer);
    });
    return job;
}

Result<JobRegistration> read_job_registration(const json::object& object, std::string_view where) {
    JsonReader reader(object, std::string(where));
    JobRegistration job = read_job_registration(reader);
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    return job;
}

}  // namespace larder::allocator
