#include "tools/doctor/remote.h"

#include <boost/json/array.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/units.h"
#include "cache/dataset/dataset_root.h"
#include "cache/device.h"
#include "cache/remote/http_transfers.h"
#include "cache/remote/remote_place.h"
#include "loader/client_session.h"
#include "tools/doctor/timed_transfers.h"

namespace larder::doctor {
namespace {

namespace json = boost::json;
using protocol::BlockStatus;

constexpr std::size_t kLargeReadBytes = std::size_t{1} << 20;
constexpr std::size_t kSmallReadBytes = 4096;
constexpr std::size_t kSmallReads = 16;
constexpr std::size_t kReadsAtOnce[] = {1, 4, 16, 64};
constexpr std::size_t kObjectsMax = 1000;
constexpr std::chrono::seconds kListTimeout{30};
// A remote that fails for longer is reported, not waited for.
constexpr std::int64_t kDoctorRetryFor_ns = 5'000'000'000;
constexpr std::int64_t kReadHangs_ns = 30'000'000'000;

// Asks for a stop after a time.
class StopAfter {
public:
    explicit StopAfter(std::chrono::seconds time)
        : thread_([this, time](const std::stop_token& ended) {
              std::unique_lock lock(mutex_);
              if (!wake_.wait_for(lock, ended, time, [&] { return ended.stop_requested(); })) source_.request_stop();
          }) {}
    std::stop_token token() const { return source_.get_token(); }

private:
    std::stop_source source_;
    std::mutex mutex_;
    std::condition_variable_any wake_;
    std::jthread thread_;  // last, so that the others outlive it
};

std::string failure_text(BlockStatus status, int system_errno) {
    switch (status) {
        case BlockStatus::ok: return {};
        case BlockStatus::object_changed: return "it has changed since it was indexed";
        case BlockStatus::object_missing: return "it is gone";
        case BlockStatus::object_truncated: return "it is shorter than it was";
        case BlockStatus::object_corrupt: return "its bytes are corrupt";
        case BlockStatus::remote_failed: break;
    }
    return std::string("it cannot be read: ") + std::strerror(system_errno);
}

// Reads pieces of random objects, several at once, for a time: each Read is one slot of TimedTransfers.
class RemoteReads {
public:
    RemoteReads(cache::Remote& remote, cache::Device& device, const std::vector<RemoteObject>& objects,
                std::size_t piece_bytes_max, std::size_t at_once)
        : remote_(remote), objects_(objects), timed_(device, piece_bytes_max, at_once), reads_(at_once) {
        for (Read& read : reads_) {
            read.owner = this;
            read.done = [](cache::RemoteRead& ended, BlockStatus status, int system_errno) noexcept {
                auto& own = static_cast<Read&>(ended);
                own.owner->end(own, status, system_errno);
            };
        }
    }

    // Stops after `seconds` or `count_max` reads, or when one has failed. Returns why it failed, with the object's
    // path.
    Result<void> run(double seconds, std::size_t count_max, const cache::RemoteProblems& problems) {
        const TransferLimits limits{.seconds = seconds, .count_max = count_max, .hangs_ns = kReadHangs_ns};
        auto ran = timed_.run(limits, [this](std::size_t slot) { return begin(slot); });
        if (ran || !failed_) return ran;
        const std::string known = problems.latest(failed_->path);
        if (!known.empty()) ran.error().message = known;
        return std::unexpected(ran.error().within(failed_->path));
    }

    double bytes_per_second() const { return timed_.bytes_per_second(); }
    double median_seconds() { return timed_.median_seconds(); }

private:
    struct Read : cache::RemoteRead {
        RemoteReads* owner = nullptr;
        const RemoteObject* object = nullptr;
    };

    bool begin(std::size_t slot) {
        const RemoteObject& object = objects_[random_() % objects_.size()];
        const std::span<std::byte> piece = timed_.piece(slot);
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), object.size_bytes));
        Read& read = reads_[slot];
        read.object = &object;
        read.path = object.path;
        read.object_bytes = object.size_bytes;
        read.object_mtime_ns = object.tag;
        read.offset = random_() % (object.size_bytes - bytes + 1);
        read.into = piece.first(bytes);
        remote_.read(read);
        return true;
    }

    void end(const Read& read, BlockStatus status, int system_errno) {
        if (status == BlockStatus::ok) {
            timed_.ended(static_cast<std::size_t>(&read - reads_.data()), read.into.size());
        } else {
            if (!failed_) failed_ = read.object;
            timed_.failed({ErrorCode::io, failure_text(status, system_errno), 0});
        }
    }

    cache::Remote& remote_;
    const std::vector<RemoteObject>& objects_;
    TimedTransfers timed_;
    std::vector<Read> reads_;
    std::mt19937_64 random_{1};
    const RemoteObject* failed_ = nullptr;
};

// Keeps at most kObjectsMax objects, spread evenly.
Result<std::vector<RemoteObject>> list_objects(const cache::DatasetRoot& root) {
    const StopAfter limit(kListTimeout);
    const auto source = root.place->objects(limit.token());
    std::vector<RemoteObject> objects;
    if (!root.only_shard.empty()) {
        const auto reader = source->open(root.only_shard);
        if (!reader) return std::unexpected(reader.error());
        objects.push_back({root.only_shard, (*reader)->size_bytes(), (*reader)->tag()});
        return objects;
    }
    const auto listing = source->list({}, limit.token());
    if (!listing) {
        if (listing.error().code == ErrorCode::cancelled) {
            return fail(ErrorCode::timeout,
                        "listing its objects takes more than " + std::to_string(kListTimeout.count()) + " s");
        }
        return std::unexpected(listing.error());
    }
    const std::size_t step = listing->objects.size() / kObjectsMax + 1;
    objects.reserve(listing->objects.size() / step + 1);
    for (std::size_t at = 0; at < listing->objects.size(); at += step) {
        const auto& object = listing->objects[at];
        objects.push_back({std::string(listing->path(object)), object.size_bytes, object.tag});
    }
    return objects;
}

RemoteMeasure bad_remote(Finding finding, const Error& error, std::string advice) {
    return {.finding = to_do(std::move(finding), error.message, std::move(advice))};
}

std::string advice_for(const Error& error, bool is_directory) {
    switch (error.code) {
        case ErrorCode::not_found:
        case ErrorCode::invalid_argument: return "check the URL";
        case ErrorCode::permission_denied:
            return is_directory ? "give the daemon's user access, as the dataset's jobs read through it"
                                : "check the credentials of this shell (AWS_PROFILE, AWS_ACCESS_KEY_ID) and the "
                                  "bucket's policy; larderd uses those of its own environment";
        case ErrorCode::changed: return "index the dataset again: larder dataset index NAME";
        default:
            return is_directory
                       ? "check that its file system is mounted and answers"
                       : "check the network, the proxy and the endpoint; larderd retries for `remote.retry_for`";
    }
}

}  // namespace

RemoteMeasure check_remote(const RemoteTarget& target, double seconds) {
    Finding finding{.check = "remote", .subject = target.subject, .found = {}, .advice = {}};
    const bool is_directory = target.url.starts_with("file://");
    std::unique_ptr<cache::HttpTransfers> transfers;
    if (!is_directory) {
        auto started = cache::HttpTransfers::start(
            {.settings = {.ca_file = target.ca_file}, .retry_for_ns = kDoctorRetryFor_ns, .on_outage = {}});
        if (!started) return bad_remote(std::move(finding), started.error(), "check the libraries of this machine");
        transfers = std::move(*started);
    }
    cache::IndexRequest request;
    request.definition.url = target.url;
    request.definition.remote = target.options;
    request.transfers = transfers.get();
    const auto root = cache::find_dataset_root(request);
    if (!root) return bad_remote(std::move(finding), root.error(), advice_for(root.error(), is_directory));
    std::vector<RemoteObject> objects = target.objects;
    if (objects.empty()) {
        auto listed = list_objects(*root);
        if (!listed) return bad_remote(std::move(finding), listed.error(), advice_for(listed.error(), is_directory));
        objects = std::move(*listed);
    }
    std::erase_if(objects, [](const RemoteObject& object) { return object.size_bytes == 0; });
    finding.values["objects_read_from"] = objects.size();
    if (objects.empty()) {
        return bad_remote(std::move(finding), {ErrorCode::not_found, "there is no object with any bytes", 0},
                          "check the URL");
    }
    const SteadyClock clock;
    auto device = cache::make_device(cache::DeviceKind::automatic, clock);
    if (!device) return bad_remote(std::move(finding), device.error(), "raise the limits of this process");
    auto remote = root->place->remote(*device->device);
    if (!remote) return bad_remote(std::move(finding), remote.error(), advice_for(remote.error(), is_directory));

    const auto stop = [&] {
        device->device->stop();
        remote->reset();
    };
    RemoteReads small(**remote, *device->device, objects, kSmallReadBytes, 1);
    if (const auto read = small.run(seconds, kSmallReads, root->place->problems()); !read) {
        stop();
        return bad_remote(std::move(finding), read.error(), advice_for(read.error(), is_directory));
    }
    const double latency_s = small.median_seconds();
    finding.values["small_read_median_s"] = latency_s;
    finding.found = "a small read takes " + format_duration_ns(static_cast<std::int64_t>(latency_s * 1e9));
    RemoteMeasure measure;
    json::array rates;
    for (const std::size_t at_once : kReadsAtOnce) {
        RemoteReads reads(**remote, *device->device, objects, kLargeReadBytes, at_once);
        if (const auto read = reads.run(seconds, SIZE_MAX, root->place->problems()); !read) {
            stop();
            return bad_remote(
                std::move(finding),
                {read.error().code, std::to_string(at_once) + " reads at once: " + read.error().message, 0},
                advice_for(read.error(), is_directory));
        }
        if (!is_directory) measure.bytes_per_second = std::max(measure.bytes_per_second, reads.bytes_per_second());
        rates.push_back(json::object{{"reads_at_once", at_once}, {"bytes_per_second", reads.bytes_per_second()}});
        finding.found += (at_once == 1 ? "; " : ", ") + format_bytes_per_second(reads.bytes_per_second()) + " with " +
                         std::to_string(at_once) + (at_once == 1 ? " read at once" : "");
    }
    stop();
    finding.values["rates"] = std::move(rates);
    if (is_directory) finding.found += " (as far as the page cache has it, of memory)";
    if (transfers) {
        const cache::HttpStatistics statistics = transfers->statistics();
        finding.values["requests"] = statistics.requests;
        finding.values["retries"] = statistics.retries;
        finding.values["overloads"] = statistics.overloads;
        if (statistics.overloads > 0) {
            finding.verdict = Verdict::to_do;
            finding.advice = "the remote answered " + std::to_string(statistics.overloads) +
                             " times that it is overloaded: lower remote.connections of the daemons, or its bandwidth "
                             "at the allocator";
        } else if (statistics.retries > 0) {
            finding.verdict = Verdict::to_do;
            finding.advice = std::to_string(statistics.retries) + " of " + std::to_string(statistics.requests) +
                             " requests failed and were sent again: look for losses on the way to the remote";
        }
    }
    measure.finding = std::move(finding);
    return measure;
}

Result<RemoteTarget> remote_of_dataset(const std::string& name, const std::string& socket) {
    const auto session = detail::ClientSession::open({.socket = socket, .dataset = name, .job = "larder-doctor"});
    if (!session) return std::unexpected(session.error());
    const protocol::Manifest manifest = (*session)->take_manifest();
    RemoteTarget target{
        .subject = name, .url = std::string(manifest.url()), .options = {}, .objects = {}, .ca_file = {}};
    const std::uint64_t count = manifest.object_count();
    const std::uint64_t step = count / kObjectsMax + 1;
    target.objects.reserve(count / step + 1);
    for (std::uint64_t at = 0; at < count; at += step) {
        const protocol::Object object = manifest.object(at);
        target.objects.push_back({std::string(object.path), object.size_bytes, object.mtime_ns});
    }
    return target;
}

}  // namespace larder::doctor
