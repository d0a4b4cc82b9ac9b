#include "cache/remote/http_objects.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <set>

#include "base/assert.h"
#include "base/machine_memory.h"
#include "base/server/percent_encoding.h"
#include "base/units.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {
namespace {

constexpr std::int64_t kRetryFor_ns = 30'000'000'000;  // short, because a user waits
// Shorter for a server that has never answered: its address is probably wrong.
constexpr std::int64_t kFirstRetryFor_ns = 10'000'000'000;
constexpr std::size_t kProbesAtOnce = 256;
constexpr std::uint64_t kObjectsPerReport = 1024;

Error error_of(const HttpGet& get) {
    switch (get.outcome) {
        case HttpOutcome::missing: return {.code = ErrorCode::not_found, .message = get.message};
        case HttpOutcome::changed: return {.code = ErrorCode::changed, .message = get.message};
        case HttpOutcome::cancelled: return {.code = ErrorCode::cancelled, .message = "indexing was cancelled"};
        default: break;
    }
    ErrorCode code = ErrorCode::unavailable;
    if (get.system_errno == EACCES) code = ErrorCode::permission_denied;
    if (get.system_errno == ENOENT) code = ErrorCode::not_found;  // the bucket is missing
    if (get.system_errno == EPROTO) code = ErrorCode::protocol;   // the server answers, but not as it should
    return {.code = code, .message = get.message, .system_errno = get.system_errno};
}

bool is_hidden(std::string_view path) {
    return path.starts_with('.') || path.find("/.") != std::string_view::npos;
}

bool stays_below(std::string_view path) {
    if (path.empty() || path.starts_with('/') || path.find('\0') != std::string_view::npos) return false;
    return path != ".." && !path.starts_with("../") && path.find("/../") == std::string_view::npos &&
           !path.ends_with("/..");
}

void finish_listing(ObjectListing& listing, std::uint64_t hidden) {
    listing.sort();
    const auto add_note = [&](std::uint64_t count, const char* what) {
        if (count > 0) listing.notes.push_back("left out " + std::to_string(count) + " " + what);
    };
    add_note(listing.empty.size(), "empty object(s)");
    add_note(hidden, "object(s) whose names begin with a dot");
    std::set<std::string_view> top;
    for (const ObjectListing::Object& object : listing.objects) {
        const std::string_view path = listing.path(object);
        if (const std::size_t slash = path.find('/'); slash != std::string_view::npos)
            top.insert(path.substr(0, slash));
    }
    listing.top_directories.assign(top.begin(), top.end());
}

class Reader final : public ObjectReader {
public:
    Reader(std::shared_ptr<const HttpOrigin> origin, HttpTransfers& transfers, std::stop_token stop,
           const HttpGet& probe)
        : origin_(std::move(origin)),
          transfers_(transfers),
          stop_(std::move(stop)),
          url_(probe.url),
          size_bytes_(probe.object_bytes),
          tag_(probe.tag),
          serves_ranges_(probe.serves_ranges) {}

    std::uint64_t size_bytes() const override { return size_bytes_; }
    std::int64_t tag() const override { return tag_; }
    std::size_t near_bytes() const override { return std::size_t{1} << 20; }

    Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) override {
        buffer_.resize(bytes);
        if (bytes == 0) return std::span<const std::byte>(buffer_);
        const bool whole = offset == 0 && bytes == size_bytes_;
        if (!whole && !serves_ranges_) {
            if (whole_.empty()) {
                if (auto got = get_whole(); !got) return std::unexpected(got.error());
            }
            LARDER_ASSERT(offset <= size_bytes_ && bytes <= size_bytes_ - offset);
            return std::span<const std::byte>(whole_).subspan(offset, bytes);
        }
        if (auto got = get(whole ? HttpRequestKind::whole : HttpRequestKind::range, offset, buffer_); !got) {
            return std::unexpected(got.error());
        }
        return std::span<const std::byte>(buffer_);
    }

private:
    Result<void> get(HttpRequestKind ask, std::uint64_t offset, std::span<std::byte> into) {
        HttpGet get{.origin = origin_.get(),
                    .url = url_,
                    .ask = ask,
                    .offset = offset,
                    .into = into,
                    .object_bytes = size_bytes_,
                    .tag = tag_,
                    .retry_for_ns = kRetryFor_ns};
        transfers_.run(get, stop_);
        if (get.outcome != HttpOutcome::ok) return std::unexpected(error_of(get));
        return {};
    }

    // Reads and keeps the whole object, to serve reads of parts of it if the server does not support ranges.
    Result<void> get_whole() {
        if (size_bytes_ > protocol::kBlockBytesMax) {
            return fail(ErrorCode::unsupported,
                        url_ +
                            ": the server answers a request for a range with the whole object, and this one is "
                            "larger than a block can be");
        }
        std::vector<std::byte> bytes(size_bytes_);
        if (auto got = get(HttpRequestKind::whole, 0, bytes); !got) return got;
        whole_ = std::move(bytes);
        return {};
    }

    std::shared_ptr<const HttpOrigin> origin_;
    HttpTransfers& transfers_;
    std::stop_token stop_;
    std::string url_;
    std::uint64_t size_bytes_;
    std::int64_t tag_;
    bool serves_ranges_;
    std::vector<std::byte> buffer_;
    std::vector<std::byte> whole_;
};

// Probes many objects at once for size and tag.
class Probes {
public:
    Probes(const HttpRoot& root, HttpTransfers& transfers, std::int64_t retry_for_ns)
        : root_(root), transfers_(transfers), retry_for_ns_(retry_for_ns) {}

    // Calls `take` for each of `names` in order, on the calling thread. Stops at the first error and returns it.
    template <typename Take>
    Result<void> run(const std::vector<std::string>& names, const std::stop_token& stop, Take take) {
        std::size_t started = 0;
        for (std::size_t next = 0; next < names.size(); ++next) {
            while (started < names.size() && window_.size() < kProbesAtOnce) start(names[started++]);
            {
                std::unique_lock lock(mutex_);
                ended_.wait(lock, stop, [&] { return window_.front().has_ended; });
            }
            Result<void> taken = stop.stop_requested() ? fail(ErrorCode::cancelled, "indexing was cancelled")
                                                       : take(names[next], window_.front().get);
            if (!taken) {
                transfers_.cancel(this);
                return taken;
            }
            window_.pop_front();
        }
        return {};
    }

private:
    struct Probe {
        HttpGet get;
        Probes* probes = nullptr;
        bool has_ended = false;
    };

    void start(const std::string& name) {
        Probe& probe = window_.emplace_back();
        probe.probes = this;
        probe.get = {.origin = root_.origin.get(),
                     .owner = this,
                     .context = &probe,
                     .url = root_.url + "/",
                     .ask = HttpRequestKind::probe,
                     .retry_for_ns = retry_for_ns_};
        probe.get.url += percent_encode_path(name);
        probe.get.done = [](HttpGet& get) noexcept {
            auto& ended = *static_cast<Probe*>(get.context);
            const std::scoped_lock lock(ended.probes->mutex_);
            ended.has_ended = true;
            ended.probes->ended_.notify_one();
        };
        transfers_.submit(probe.get);
    }

    const HttpRoot& root_;
    HttpTransfers& transfers_;
    const std::int64_t retry_for_ns_;
    std::mutex mutex_;  // guards Probe::has_ended
    std::condition_variable_any ended_;
    std::deque<Probe> window_;  // a deque keeps references to probes valid
};

class HttpObjects final : public ObjectSource {
public:
    HttpObjects(RemoteUrl url, HttpRoot root, HttpTransfers& transfers, std::stop_token stop, std::uint64_t bytes_max)
        : url_(std::move(url)),
          root_(std::move(root)),
          transfers_(transfers),
          stop_(std::move(stop)),
          listing_bytes_max_(bytes_max) {}

    std::string description() const override { return url_.text(); }

    Result<ObjectListing> list(const std::function<void(std::uint64_t, std::uint64_t)>& on_found,
                               std::stop_token stop) override {
        // Indexing lists the objects more than once.
        if (!listed_) {
            auto listing = root_.listing != nullptr ? list_bucket(on_found, stop) : probe_all(on_found, stop);
            if (!listing) return listing;
            listed_ = std::move(*listing);
        }
        return *listed_;
    }

    Result<std::unique_ptr<ObjectReader>> open(const std::string& path) override {
        if (const ObjectListing::Object* known = find(path)) return open_as(path, known->size_bytes, known->tag);
        HttpGet probe = make_get(path, HttpRequestKind::probe);
        run(probe);
        if (probe.outcome != HttpOutcome::ok) return std::unexpected(error_of(probe));
        if (!probe.serves_ranges) serves_ranges_ = false;
        return std::make_unique<Reader>(root_.origin, transfers_, stop_, probe);
    }

    // Sends no request: the reader's requests carry the expected size and tag.
    Result<std::unique_ptr<ObjectReader>> open_as(const std::string& path, std::uint64_t size_bytes,
                                                  std::int64_t tag) override {
        HttpGet known = make_get(path, HttpRequestKind::probe);
        known.object_bytes = size_bytes;
        known.tag = tag;
        known.serves_ranges = serves_ranges_;
        return std::make_unique<Reader>(root_.origin, transfers_, stop_, known);
    }

    bool serves_ranges() const override { return serves_ranges_; }

private:
    const ObjectListing::Object* find(std::string_view path) const {
        if (!listed_) return nullptr;
        const auto at = std::ranges::lower_bound(listed_->objects, path, {},
                                                 [&](const auto& object) { return listed_->path(object); });
        return at != listed_->objects.end() && listed_->path(*at) == path ? &*at : nullptr;
    }

    Result<ObjectListing> probe_all(const std::function<void(std::uint64_t, std::uint64_t)>& on_found,
                                    const std::stop_token& stop) {
        auto names = find_names();
        if (!names) return std::unexpected(names.error());
        ObjectListing listing;
        std::uint64_t bytes = 0;
        Probes probes(root_, transfers_, retry_for_ns());
        auto probed = probes.run(*names, stop, [&](const std::string& name, const HttpGet& get) -> Result<void> {
            if (get.outcome != HttpOutcome::ok) return std::unexpected(error_of(get));
            if (get.object_bytes == 0) {
                listing.empty.push_back(name);
                return {};
            }
            listing.add(name, get.object_bytes, get.tag);
            if (!get.serves_ranges) serves_ranges_ = false;
            bytes += get.object_bytes;
            if (on_found && listing.objects.size() % kObjectsPerReport == 0) on_found(listing.objects.size(), bytes);
            return {};
        });
        if (!probed) return std::unexpected(probed.error());
        if (on_found) on_found(listing.objects.size(), bytes);
        finish_listing(listing, 0);
        return listing;
    }

    std::int64_t retry_for_ns() const { return answered_ ? kRetryFor_ns : kFirstRetryFor_ns; }

    void run(HttpGet& get) {
        get.retry_for_ns = retry_for_ns();
        transfers_.run(get, stop_);
        if (get.outcome != HttpOutcome::failed) answered_ = true;
    }

    HttpGet make_get(const std::string& path, HttpRequestKind ask) const {
        HttpGet get{.origin = root_.origin.get(), .url = root_.url + "/", .ask = ask};
        get.url += percent_encode_path(path);
        return get;
    }

    Result<std::vector<std::string>> find_names() {
        if (!url_.names.empty()) return check_names(url_.names);
        if (!url_.list.empty()) return read_list();
        HttpGet probe = make_get("index.json", HttpRequestKind::probe);
        run(probe);
        if (probe.outcome == HttpOutcome::ok) return std::vector<std::string>{"index.json"};
        if (probe.outcome != HttpOutcome::missing && probe.status != 403) return std::unexpected(error_of(probe));
        return fail(ErrorCode::invalid_argument,
                    url_.text() +
                        " cannot be listed: HTTP has no listing, and there is no index.json. Name the objects "
                        "in the URL, as in " +
                        url_.text() + "/{000..146}.tar, or give the URL of a .txt with one name a line");
    }

    Result<std::vector<std::string>> check_names(std::vector<std::string> names) const {
        std::ranges::sort(names);
        if (std::ranges::adjacent_find(names) != names.end()) {
            return fail(ErrorCode::invalid_argument, url_.text() + ": an object is named twice");
        }
        const auto outside = std::ranges::find_if_not(names, stays_below);
        if (outside != names.end()) {
            return fail(ErrorCode::invalid_argument,
                        url_.text() + ": \"" + *outside + "\" is not the name of an object below it");
        }
        return names;
    }

    // Reads the list: one name on each line, relative to the list or as a URL below the root. Skips empty lines and
    // lines that begin with #.
    Result<std::vector<std::string>> read_list() {
        HttpGet get = make_get(url_.list, HttpRequestKind::text);
        run(get);
        if (get.outcome != HttpOutcome::ok) return std::unexpected(error_of(get));
        std::string_view text(reinterpret_cast<const char*>(get.body.data()), get.body.size());
        std::vector<std::string> names;
        std::uint64_t number = 0;
        while (!text.empty()) {
            const std::size_t end = std::min(text.find('\n'), text.size());
            std::string_view line = text.substr(0, end);
            text.remove_prefix(std::min(end + 1, text.size()));
            ++number;
            while (line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
            if (line.empty() || line.starts_with('#')) continue;
            if (line.starts_with(root_.url + "/")) {
                names.push_back(percent_decode_leniently(line.substr(root_.url.size() + 1)));
            } else if (line.find("://") != std::string_view::npos || line.find('?') != std::string_view::npos) {
                // The error does not quote the line, because a query may be a signature.
                return fail(ErrorCode::invalid_argument, get.url + ", line " + std::to_string(number) +
                                                             ": is neither a name nor a URL below " + root_.url +
                                                             "/, without a query");
            } else {
                names.emplace_back(line);
            }
        }
        if (names.empty()) return fail(ErrorCode::invalid_argument, get.url + " names no object");
        return check_names(std::move(names));
    }

    Result<ObjectListing> list_bucket(const std::function<void(std::uint64_t, std::uint64_t)>& on_found,
                                      const std::stop_token& stop) {
        if (!url_.only_shard.empty()) {
            HttpGet probe = make_get(url_.only_shard, HttpRequestKind::probe);
            run(probe);
            if (probe.outcome != HttpOutcome::ok) return std::unexpected(error_of(probe));
            ObjectListing one;
            if (probe.object_bytes > 0) {
                one.add(url_.only_shard, probe.object_bytes, probe.tag);
            } else {
                one.empty.push_back(url_.only_shard);
            }
            finish_listing(one, 0);
            return one;
        }
        const std::string prefix = url_.root.empty() ? "" : url_.root + "/";
        ObjectListing listing;
        std::uint64_t keys = 0;
        std::uint64_t hidden = 0;
        std::uint64_t bytes = 0;
        std::uint64_t listing_bytes = 0;  // as if keys that are left out took memory, too, so that every listing ends
        std::string continuation;
        do {
            if (stop.stop_requested()) return fail(ErrorCode::cancelled, "indexing was cancelled");
            HttpGet get{.origin = root_.origin.get(),
                        .url = root_.listing->page_url(prefix, continuation),
                        .ask = HttpRequestKind::text};
            run(get);
            if (get.outcome != HttpOutcome::ok) return std::unexpected(error_of(get));
            auto page = root_.listing->parse_page(get.body);
            if (!page) return std::unexpected(page.error().within("the listing of " + url_.text()));
            listing_bytes += page->next.size();
            for (const BucketObject& object : page->objects) {
                listing_bytes += sizeof(ObjectListing::Object) + object.key.size();
                const std::string_view key = std::string_view(object.key);
                if (!key.starts_with(prefix)) continue;
                ++keys;
                const std::string_view path = key.substr(prefix.size());
                if (path.empty() || path.ends_with('/')) continue;  // some tools write such keys for directories
                if (object.size_bytes == 0) {
                    listing.empty.emplace_back(path);
                } else if (is_hidden(path)) {
                    ++hidden;
                } else if (!stays_below(path)) {
                    return fail(ErrorCode::unsupported, url_.text() + ": the key \"" + object.key +
                                                            "\" has .. in it, which is not allowed in a path");
                } else {
                    listing.add(path, object.size_bytes, tag_of_version(object.version));
                    bytes += object.size_bytes;
                }
            }
            if (on_found) on_found(listing.objects.size(), bytes);
            if (listing_bytes > listing_bytes_max_) {
                return fail(ErrorCode::unsupported,
                            "the listing of " + url_.text() + " takes more than " +
                                format_bytes(listing_bytes_max_, UnitFamily::binary) +
                                " of memory, a quarter of what there is: give a longer prefix, or index the dataset on "
                                "a machine with more");
            }
            if (!page->next.empty() && page->next == continuation) {
                return fail(ErrorCode::protocol, "the listing of " + url_.text() +
                                                     " does not end: the server says twice that the same page follows");
            }
            continuation = std::move(page->next);
        } while (!continuation.empty());
        if (keys == 0) return std::unexpected(nothing_listed(prefix));
        finish_listing(listing, hidden);
        return listing;
    }

    Error nothing_listed(const std::string& prefix) const {
        if (prefix.empty()) {
            return {.code = ErrorCode::not_found,
                    .message = url_.text() + ": the bucket is empty: check the URL and --endpoint"};
        }
        return {.code = ErrorCode::not_found,
                .message = url_.text() + ": nothing has the prefix " + prefix +
                           ": check the URL. A dataset is a prefix, or one .tar: if this names an object, give its "
                           "prefix"};
    }

    RemoteUrl url_;
    HttpRoot root_;
    HttpTransfers& transfers_;
    std::stop_token stop_;
    const std::uint64_t listing_bytes_max_;
    std::optional<ObjectListing> listed_;
    std::atomic<bool> serves_ranges_ = true;
    std::atomic<bool> answered_ = false;
};

}  // namespace

std::uint64_t listing_bytes_max() {
    return machine_memory().bytes / 4;
}

std::unique_ptr<ObjectSource> make_http_objects(const RemoteUrl& url, const HttpRoot& root, HttpTransfers& transfers,
                                                std::stop_token stop, std::uint64_t bytes_max) {
    return std::make_unique<HttpObjects>(url, root, transfers, std::move(stop), bytes_max);
}

}  // namespace larder::cache
