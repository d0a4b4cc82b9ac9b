#include "cache/remote/http_transfers.h"

#include <curl/curl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <semaphore>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/server/libcurl.h"
#include "cache/remote/http_endpoint_state.h"
#include "cache/remote/redirect_rule.h"
#include "cache/remote/retry_delay.h"

namespace larder::cache {

namespace {

constexpr std::int64_t kPollMax_ns = 1'000'000'000;
// An object counts as changed after this many answers that say so: a proxy may have mixed up answers.
constexpr unsigned kChangedAnswersNeeded = 2;

constexpr long kBytesPerSecondLeast = 4096;
// The time limit of a try grows by 1 s for each 64 KiB requested.
constexpr std::uint64_t kBytesPerTimeoutSecond = 64 << 10;
constexpr std::size_t kErrorBodyBytes = 4096;
constexpr std::size_t kTextBytesMax = std::size_t{64} << 20;
constexpr long kRedirectsMax = 5;

// A parsed "bytes 0-99/1000".
struct ContentRange {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    std::uint64_t total = 0;
};

bool take_number(std::string_view& text, std::uint64_t& into, char until) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), into);
    if (error != std::errc{}) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (until == '\0') return text.empty();
    if (text.empty() || text.front() != until) return false;
    text.remove_prefix(1);
    return true;
}

bool parse_content_range(std::string_view text, ContentRange& range) {
    constexpr std::string_view kUnit = "bytes ";
    if (!text.starts_with(kUnit)) return false;
    text.remove_prefix(kUnit.size());
    return take_number(text, range.first, '-') && take_number(text, range.last, '/') &&
           take_number(text, range.total, '\0');
}

void set(CURL* easy, CURLoption option, long value) {
    curl_easy_setopt(easy, option, value);
}

void set(CURL* easy, CURLoption option, const char* value) {
    curl_easy_setopt(easy, option, value);
}

}  // namespace

// --- one try

// The result of a try.
enum class Verdict : std::uint8_t {
    ok,
    missing,
    changed,
    refused,     // a retry gives the same result
    failed,      // a retry may help
    overloaded,  // the server reports overload: retry, with fewer requests in flight
};

// One try of an HttpGet. An attempt sets up a libcurl handle, compares the headers of the answer with the request
// before it takes a byte of the body, copies the body to its destination, and returns a verdict at the end.
class HttpAttempt {
public:
    // Connections belong to the multi handle that `easy` is added to.
    HttpAttempt();
    ~HttpAttempt();
    HttpAttempt(const HttpAttempt&) = delete;
    HttpAttempt& operator=(const HttpAttempt&) = delete;

    // Prepares the next try of `get`. Fails if the request cannot be sent (no credentials).
    Result<void> begin(HttpGet& get, const HttpSettings& settings, std::int64_t now_ns);
    // Call when libcurl has ended the transfer. Sets the status of the get, the results of a probe, and why the try
    // failed.
    Verdict finish(CURLcode code);
    void clear();

    CURL* easy() const { return easy_; }
    HttpGet& get() const { return *get_; }
    std::int64_t began_ns() const { return began_ns_; }
    std::uint64_t received_bytes() const { return received_bytes_; }  // body bytes, including unwanted ones
    std::int64_t first_byte_ns() const;                               // from the request to the answer's first byte
    // Notes the times of this try, as part of those of its get. Call when libcurl has ended the transfer.
    void note_times(RemoteTimes& times) const;

    HttpAttempt* next = nullptr;  // link in the list of idle attempts

private:
    static std::size_t receive(char* data, std::size_t size, std::size_t count, void* attempt);
    // Refuse redirects to addresses that redirect_rule.h excludes. libcurl calls the first before it connects, and the
    // second before each request, because a connection to a refused address may be open already.
    static curl_socket_t open_socket(void* attempt, curlsocktype purpose, curl_sockaddr* address);
    static int begin_request(void* attempt, char* server_ip, char* local_ip, int server_port, int local_port);
    bool may_use(AddressKind address);
    std::size_t receive_body(std::span<const std::byte> bytes);
    // Compares the headers with the request. Returns true if the body is wanted.
    bool check_headers();
    bool check_range(const char* content_range);
    // The size differs: the object has changed, unless its tag is the expected one (then the answer is faulty).
    bool report_other_size(std::string what);
    void set_probe_result(bool serves_ranges);
    bool set_fault(std::string what);
    // These note the reason in the get. `note_failure` returns its verdict.
    Verdict note_failure(Verdict verdict, int system_errno, const std::string& what) const;
    Verdict verdict_of_status(int status) const;
    Verdict verdict_of_code(CURLcode code) const;
    int status() const;
    const char* header(const char* name) const;

    CURL* easy_;
    curl_slist* headers_ = nullptr;
    HttpGet* get_ = nullptr;
    std::int64_t began_ns_ = 0;
    std::size_t filled_ = 0;
    std::uint64_t received_bytes_ = 0;
    bool headers_are_checked_ = false;
    bool body_is_wanted_ = false;
    bool object_has_changed_ = false;
    bool tag_is_same_ = false;
    bool lacks_tag_ = false;  // neither ETag nor Last-Modified, although the object had one when it was indexed
    AddressKind first_address_ = AddressKind::ordinary;  // of the server that was asked first
    bool address_is_refused_ = false;                    // a redirect led to an address that is not allowed
    bool headers_suffice_ = false;  // the headers are all that was needed; the attempt ends the transfer
    std::string fault_;             // why the attempt ended the transfer
    std::string error_body_;        // beginning of an error's body
    char error_[CURL_ERROR_SIZE] = {};
};

HttpAttempt::HttpAttempt() : easy_(curl_easy_init()) {
    LARDER_ASSERT(easy_ != nullptr);
}

HttpAttempt::~HttpAttempt() {
    curl_easy_cleanup(easy_);
    curl_slist_free_all(headers_);
}

void HttpAttempt::clear() {
    curl_easy_reset(easy_);
    curl_slist_free_all(headers_);
    headers_ = nullptr;
    get_ = nullptr;
}

Result<void> HttpAttempt::begin(HttpGet& get, const HttpSettings& settings, std::int64_t now_ns) {
    get_ = &get;
    began_ns_ = now_ns;
    filled_ = 0;
    received_bytes_ = 0;
    headers_are_checked_ = body_is_wanted_ = object_has_changed_ = tag_is_same_ = lacks_tag_ = headers_suffice_ = false;
    first_address_ = AddressKind::ordinary;
    address_is_refused_ = false;
    fault_.clear();
    error_body_.clear();
    error_[0] = '\0';
    if (get.ask == HttpRequestKind::text) get.body.clear();

    set(easy_, CURLOPT_URL, get.url.c_str());
    auto signed_headers = get.origin->prepare(easy_, get, nullptr);
    if (!signed_headers) return std::unexpected(signed_headers.error());
    headers_ = *signed_headers;
    curl_easy_setopt(easy_, CURLOPT_HTTPHEADER, headers_);
    if (const std::string range = range_of(get); !range.empty()) set(easy_, CURLOPT_RANGE, range.c_str());
    if (get.ask == HttpRequestKind::send) {
        // An empty Expect disables "100-continue": a peer accepts or refuses at once, so waiting gains nothing.
        headers_ = curl_slist_append(headers_, "Expect:");
        headers_ = curl_slist_append(headers_, "Content-Type: application/octet-stream");
        curl_easy_setopt(easy_, CURLOPT_HTTPHEADER, headers_);
        curl_easy_setopt(easy_, CURLOPT_POST, 1L);
        curl_easy_setopt(easy_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(get.into.size()));
        curl_easy_setopt(easy_, CURLOPT_POSTFIELDS, reinterpret_cast<const char*>(get.into.data()));
    }
    curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, &HttpAttempt::receive);
    curl_easy_setopt(easy_, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(easy_, CURLOPT_PRIVATE, this);
    curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, error_);
    set(easy_, CURLOPT_NOSIGNAL, 1L);
    set(easy_, CURLOPT_PATH_AS_IS, 1L);  // names of objects are sent unchanged
    set(easy_, CURLOPT_PROTOCOLS_STR, "http,https");
    set(easy_, CURLOPT_REDIR_PROTOCOLS_STR, get.url.starts_with("https:") ? "https" : "http");
    set(easy_, CURLOPT_FOLLOWLOCATION, get.origin->follows_redirects() ? 1L : 0L);
    set(easy_, CURLOPT_MAXREDIRS, kRedirectsMax);
    if (get.origin->follows_redirects()) {
        curl_easy_setopt(easy_, CURLOPT_OPENSOCKETFUNCTION, &HttpAttempt::open_socket);
        curl_easy_setopt(easy_, CURLOPT_OPENSOCKETDATA, this);
        curl_easy_setopt(easy_, CURLOPT_PREREQFUNCTION, &HttpAttempt::begin_request);
        curl_easy_setopt(easy_, CURLOPT_PREREQDATA, this);
    }
    set(easy_, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_2TLS));
    set(easy_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings.connect_timeout_ms));
    set(easy_, CURLOPT_LOW_SPEED_LIMIT, kBytesPerSecondLeast);
    set(easy_, CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings.stall_timeout_s));
    const auto transfer_s = static_cast<std::int64_t>(get.into.size() / kBytesPerTimeoutSecond);
    set(easy_, CURLOPT_TIMEOUT, static_cast<long>(settings.request_timeout_s + transfer_s));
    set(easy_, CURLOPT_BUFFERSIZE, 512L << 10);
    set(easy_, CURLOPT_USERAGENT, "larder");
    if (!settings.ca_file.empty()) {
        set(easy_, CURLOPT_CAINFO, settings.ca_file.c_str());
        curl_easy_setopt(easy_, CURLOPT_CAPATH, nullptr);  // else libcurl would trust the system's authorities too
    }
    return {};
}

bool HttpAttempt::may_use(AddressKind address) {
    long redirects = 0;
    curl_easy_getinfo(easy_, CURLINFO_REDIRECT_COUNT, &redirects);
    if (redirects == 0) first_address_ = address;
    const bool allowed = redirects == 0 || may_redirect(first_address_, address);
    address_is_refused_ = !allowed;
    return allowed;
}

curl_socket_t HttpAttempt::open_socket(void* attempt, curlsocktype purpose, curl_sockaddr* address) {
    const bool connects = purpose == CURLSOCKTYPE_IPCXN;
    if (connects && !static_cast<HttpAttempt*>(attempt)->may_use(kind_of_address(address->addr))) {
        return CURL_SOCKET_BAD;
    }
    return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

int HttpAttempt::begin_request(void* attempt, char* server_ip, char*, int, int) {
    const bool allowed = static_cast<HttpAttempt*>(attempt)->may_use(kind_of_address(std::string_view(server_ip)));
    return allowed ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT;
}

std::size_t HttpAttempt::receive(char* data, std::size_t size, std::size_t count, void* attempt) {
    return static_cast<HttpAttempt*>(attempt)->receive_body(std::as_bytes(std::span(data, size * count)));
}

std::size_t HttpAttempt::receive_body(std::span<const std::byte> bytes) {
    received_bytes_ += bytes.size();
    if (!headers_are_checked_) {
        headers_are_checked_ = true;
        body_is_wanted_ = check_headers();
    }
    if (body_is_wanted_ && get_->ask == HttpRequestKind::send)
        return bytes.size();  // drop the body: `into` holds what was sent
    if (body_is_wanted_ && get_->ask == HttpRequestKind::text) {
        const std::uint64_t most = get_->object_bytes != 0 ? get_->object_bytes : kTextBytesMax;
        if (get_->body.size() + bytes.size() > most) {
            set_fault("the answer is longer than the limit for a text");
            return CURL_WRITEFUNC_ERROR;
        }
        get_->body.insert(get_->body.end(), bytes.begin(), bytes.end());
        return bytes.size();
    }
    if (body_is_wanted_) {
        if (bytes.size() > get_->into.size() - filled_) {
            set_fault("more bytes arrived than were requested");
            return CURL_WRITEFUNC_ERROR;
        }
        std::memcpy(get_->into.data() + filled_, bytes.data(), bytes.size());
        filled_ += bytes.size();
        return bytes.size();
    }
    // Take the one byte of a probed range: ending the transfer early would close the connection.
    if (headers_suffice_ && get_->serves_ranges && received_bytes_ <= 1) return bytes.size();
    if (headers_suffice_ || !fault_.empty() || object_has_changed_) return CURL_WRITEFUNC_ERROR;
    const std::size_t appended_bytes = std::min(bytes.size(), kErrorBodyBytes - error_body_.size());
    error_body_.append(reinterpret_cast<const char*>(bytes.data()), appended_bytes);
    return bytes.size();
}

int HttpAttempt::status() const {
    long code = 0;
    curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &code);
    return static_cast<int>(code);
}

const char* HttpAttempt::header(const char* name) const {
    curl_header* found = nullptr;
    return curl_easy_header(easy_, name, 0, CURLH_HEADER, -1, &found) == CURLHE_OK ? found->value : nullptr;
}

bool HttpAttempt::set_fault(std::string what) {
    fault_ = std::move(what);
    return false;
}

bool HttpAttempt::check_range(const char* content_range) {
    ContentRange range;
    if (content_range == nullptr || !parse_content_range(content_range, range)) {
        return set_fault(std::string("the server answered with a part, and Content-Range \"") +
                         (content_range == nullptr ? "" : content_range) + "\"");
    }
    if (get_->ask == HttpRequestKind::probe) {
        if (range.first != 0 || range.last != 0) {
            return set_fault(std::string("Content-Range is \"") + content_range + "\" for bytes=0-0");
        }
        get_->object_bytes = range.total;
        return true;
    }
    const std::uint64_t last = get_->offset + get_->into.size() - 1;
    if (range.first != get_->offset || range.last != last) {
        return set_fault(std::string("Content-Range is \"") + content_range +
                         "\" for bytes=" + std::to_string(get_->offset) + "-" + std::to_string(last));
    }
    if (get_->object_bytes != 0 && range.total != get_->object_bytes) {
        return report_other_size(std::string("Content-Range is \"") + content_range + "\" of an object of " +
                                 std::to_string(get_->object_bytes) + " bytes");
    }
    return true;
}

bool HttpAttempt::report_other_size(std::string what) {
    if (tag_is_same_) return set_fault(std::move(what));
    object_has_changed_ = true;
    return false;
}

void HttpAttempt::set_probe_result(bool serves_ranges) {
    get_->serves_ranges = serves_ranges;
    get_->tag = tag_of_headers(header(get_->origin->version_header()), header("last-modified"));
    headers_suffice_ = true;
}

bool HttpAttempt::check_headers() {
    const int code = status();
    if (get_->ask == HttpRequestKind::send) return code == 200 || code == 204;
    if (code != 200 && code != 206) return false;
    const bool partial = code == 206;
    curl_off_t length = -1;
    curl_easy_getinfo(easy_, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (get_->ask == HttpRequestKind::text)
        return partial ? set_fault("the server answered with a part of the requested object") : true;
    if (get_->ask == HttpRequestKind::probe) {
        if (partial) {
            if (!check_range(header("content-range"))) return false;
        } else {
            if (length < 0) return set_fault("the answer has neither Content-Range nor Content-Length");
            get_->object_bytes = static_cast<std::uint64_t>(length);
        }
        set_probe_result(partial);
        return false;
    }
    const std::int64_t tag = tag_of_headers(header(get_->origin->version_header()), header("last-modified"));
    // Without a validator nobody can tell whether these are the bytes that were indexed.
    if (get_->tag != 0 && tag != get_->tag) {
        object_has_changed_ = true;
        lacks_tag_ = tag == 0;
        return false;
    }
    tag_is_same_ = get_->tag != 0 && tag == get_->tag;
    if (partial) {
        if (get_->ask == HttpRequestKind::whole)
            return set_fault("the server answered with a part of the requested object");
        // This fault ends the transfer and closes the connection. Else excess bytes would be read as the next answer.
        if (length >= 0 && static_cast<std::uint64_t>(length) != get_->into.size()) {
            return set_fault("Content-Length is " + std::to_string(length) + " for " +
                             std::to_string(get_->into.size()) + " bytes");
        }
        return check_range(header("content-range"));
    }
    const bool is_all = get_->offset == 0 && (get_->object_bytes == 0 || get_->object_bytes == get_->into.size());
    if (get_->ask == HttpRequestKind::range && !is_all)
        return set_fault("the server answered a range request with the whole object");
    if (length >= 0 && static_cast<std::uint64_t>(length) != get_->into.size()) {
        return report_other_size("Content-Length is " + std::to_string(length) + " of an object of " +
                                 std::to_string(get_->into.size()) + " bytes");
    }
    return true;
}

std::int64_t HttpAttempt::first_byte_ns() const {
    curl_off_t us = 0;
    curl_off_t waited_us = 0;
    curl_easy_getinfo(easy_, CURLINFO_STARTTRANSFER_TIME_T, &us);
    // Leaves out the time to connect, which is unrelated to load.
    curl_easy_getinfo(easy_, CURLINFO_PRETRANSFER_TIME_T, &waited_us);
    return std::max<std::int64_t>(1, us - waited_us) * 1000;
}

void HttpAttempt::note_times(RemoteTimes& times) const {
    // libcurl's times count from the beginning of the try; 0: the try did not come so far.
    const auto time_ns = [&](CURLINFO which) {
        curl_off_t us = 0;
        curl_easy_getinfo(easy_, which, &us);
        return us == 0 ? 0 : began_ns_ + us * 1000;
    };
    long connections = 0;
    curl_easy_getinfo(easy_, CURLINFO_NUM_CONNECTS, &connections);
    times.is_new_connection = connections > 0;
    times.last_try_ns = began_ns_;
    times.sent_ns = time_ns(CURLINFO_PRETRANSFER_TIME_T);
    times.first_byte_ns = time_ns(CURLINFO_STARTTRANSFER_TIME_T);
    times.ended_ns = time_ns(CURLINFO_TOTAL_TIME_T);
}

Verdict HttpAttempt::note_failure(Verdict verdict, int system_errno, const std::string& what) const {
    get_->system_errno = system_errno;
    get_->message = get_->url + what;
    return verdict;
}

Verdict HttpAttempt::verdict_of_status(int code) const {
    std::string what = ": HTTP " + std::to_string(code);
    const std::string why = get_->origin->explain(code, error_body_);
    if (!why.empty()) what += ", " + why;
    curl_off_t retry_after_s = 0;
    curl_easy_getinfo(easy_, CURLINFO_RETRY_AFTER, &retry_after_s);
    get_->tries.retry_after_ns = std::clamp<std::int64_t>(retry_after_s, 0, 60) * 1'000'000'000;
    Verdict verdict = code >= 500 ? Verdict::failed : Verdict::refused;
    switch (code) {
        case 404:
        case 410: verdict = Verdict::missing; break;
        case 412:
        case 416: verdict = Verdict::changed; break;
        case 408:
        case 429:
        case 503: verdict = Verdict::overloaded; break;
        default: break;
    }
    int system_errno = verdict == Verdict::refused ? EPROTO : EREMOTEIO;
    switch (code) {
        case 401:
        case 403:
        case 407: system_errno = EACCES; break;
        case 503:
        case 429: system_errno = EBUSY; break;
        default: break;
    }
    if (get_->origin->lacks_bucket(code, error_body_)) {
        verdict = Verdict::refused;
        system_errno = ENOENT;
    }
    if (verdict == Verdict::refused && get_->origin->may_succeed_later(code, error_body_)) verdict = Verdict::failed;
    return note_failure(verdict, system_errno, what);
}

Verdict HttpAttempt::verdict_of_code(CURLcode code) const {
    if (address_is_refused_) {
        return note_failure(Verdict::refused, EACCES,
                            ": the server redirects to a link-local or loopback address, which is not followed");
    }
    Verdict verdict = Verdict::failed;
    int system_errno = EREMOTEIO;
    std::string what = std::string(": ") + (error_[0] != '\0' ? error_ : curl_easy_strerror(code));
    switch (code) {
        case CURLE_OPERATION_TIMEDOUT: system_errno = ETIMEDOUT; break;
        case CURLE_COULDNT_CONNECT: system_errno = ECONNREFUSED; break;
        case CURLE_COULDNT_RESOLVE_HOST:
        case CURLE_COULDNT_RESOLVE_PROXY: system_errno = EHOSTUNREACH; break;
        case CURLE_OUT_OF_MEMORY: system_errno = ENOMEM; break;
        case CURLE_GOT_NOTHING:
        case CURLE_RECV_ERROR:
            // A server that has answered before does not speak TLS on this port.
            if (status() == 0 && get_->url.starts_with("http://") && !get_->tries.endpoint->has_answered) {
                what += "; if the server speaks TLS, write https://";
            }
            [[fallthrough]];
        case CURLE_SEND_ERROR:
        case CURLE_PARTIAL_FILE: system_errno = ECONNRESET; break;
        case CURLE_SSL_CONNECT_ERROR:
            system_errno = EPROTO;
            if (std::strstr(error_, "wrong version number") == nullptr) break;
            verdict = Verdict::refused;
            what += "; the server speaks no TLS on this port: write http://";
            break;
        case CURLE_PEER_FAILED_VERIFICATION:
            what += "; if its CA is not one of the system's, set remote.ca to the file that has the CA";
            [[fallthrough]];
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_SSL_CERTPROBLEM:
        case CURLE_URL_MALFORMAT:
        case CURLE_TOO_MANY_REDIRECTS:
            verdict = Verdict::refused;
            system_errno = EACCES;
            break;
        case CURLE_UNSUPPORTED_PROTOCOL:
            // Without a status the answer was not HTTP: bytes left over from the previous answer. A retry may help.
            if (status() == 0) break;
            verdict = Verdict::refused;
            system_errno = EACCES;
            what = ": HTTP " + std::to_string(status()) +
                   ", a redirect to another scheme, which is not followed: if the server has moved, give its new URL";
            break;
        default: break;
    }
    return note_failure(verdict, system_errno, what);
}

Verdict HttpAttempt::finish(CURLcode code) {
    // libcurl does not call `receive` for an empty body.
    if (!headers_are_checked_ && code == CURLE_OK) {
        headers_are_checked_ = true;
        body_is_wanted_ = check_headers();
    }
    get_->status = status();
    get_->message.clear();
    get_->system_errno = 0;
    get_->tries.retry_after_ns = 0;
    if (get_->ask == HttpRequestKind::probe && get_->status == 416) {  // an empty object has no first byte
        get_->object_bytes = 0;
        set_probe_result(true);
    }
    if (headers_suffice_) return Verdict::ok;
    if (object_has_changed_) {
        return note_failure(Verdict::changed, 0,
                            lacks_tag_ ? ": the answer has neither ETag nor Last-Modified, as the indexed object had"
                                       : ": the object differs from the one that was indexed");
    }
    if (!fault_.empty()) return note_failure(Verdict::failed, EREMOTEIO, ": " + fault_);
    if (code != CURLE_OK) return verdict_of_code(code);
    if (!body_is_wanted_) return verdict_of_status(get_->status);
    const bool fills = get_->ask != HttpRequestKind::text && get_->ask != HttpRequestKind::send;
    if (fills && filled_ < get_->into.size()) {
        return note_failure(Verdict::failed, EREMOTEIO, ": fewer bytes arrived than were requested");
    }
    return Verdict::ok;
}

// --- the transfers' thread

class HttpTransfers::Loop {
public:
    // Takes `multi`.
    Loop(const HttpTransfersOptions& options, CURLM* multi)
        : options_(options), multi_(multi), outages_(options.on_outage) {
        curl_multi_setopt(multi_, CURLMOPT_MAX_HOST_CONNECTIONS, static_cast<long>(options.connections_max));
        curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(options.connections_max) * 4);
        // The thread inherits this mask, so that other threads handle the signals.
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        thread_ = std::thread([this] { run(); });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Loop() {
        stopping_.store(true);
        curl_multi_wakeup(multi_);
        thread_.join();
        for (HttpGet* get : gets_) {
            if (get->tries.running != nullptr) curl_multi_remove_handle(multi_, get->tries.running->easy());
            if (get->tries.hedge != nullptr) curl_multi_remove_handle(multi_, get->tries.hedge->easy());
        }
        attempts_.clear();
        curl_multi_cleanup(multi_);
    }

    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    void submit(HttpGet& get) {
        HttpGet* head = submitted_.load(std::memory_order_relaxed);
        do {
            get.next = head;
        } while (!submitted_.compare_exchange_weak(head, &get, std::memory_order_release, std::memory_order_relaxed));
        // Only the first entry of the list must wake the loop, because the loop takes the whole list at once.
        if (head == nullptr) curl_multi_wakeup(multi_);
    }

    void cancel(const void* owner) {
        std::unique_lock lock(cancel_mutex_);
        cancels_.push_back(owner);
        const std::uint64_t ticket = ++cancels_requested_;
        curl_multi_wakeup(multi_);
        cancelled_.wait(lock, [&] { return cancels_done_ >= ticket; });
    }

    HttpStatistics statistics() const {
        return {.requests = requests_.load(std::memory_order_relaxed),
                .retries = retries_.load(std::memory_order_relaxed),
                .overloads = overloads_.load(std::memory_order_relaxed),
                .hedges = hedges_.load(std::memory_order_relaxed),
                .hedges_won = hedges_won_.load(std::memory_order_relaxed),
                .outages = outages_.begun()};
    }

    std::vector<HttpOutage> outages() const { return outages_.lasting(); }

private:
    void run() {
        pthread_setname_np(pthread_self(), "larder-http");
        while (!stopping_.load()) {
            now_ns_ = clock_.now_ns();
            take_submitted();
            take_cancels();
            const std::int64_t wake_ns = start_due();
            int running = 0;
            curl_multi_perform(multi_, &running);
            if (take_finished()) continue;
            const std::int64_t wait_ns = std::clamp<std::int64_t>(wake_ns - clock_.now_ns(), 0, kPollMax_ns);
            curl_multi_poll(multi_, nullptr, 0, static_cast<int>((wait_ns + 999'999) / 1'000'000), nullptr);
        }
    }

    void take_submitted() {
        HttpGet* get = submitted_.exchange(nullptr, std::memory_order_acquire);
        HttpGet* in_order = nullptr;
        while (get != nullptr) {
            HttpGet* next = get->next;
            get->next = in_order;
            in_order = get;
            get = next;
        }
        while (in_order != nullptr) {
            get = std::exchange(in_order, in_order->next);
            get->next = nullptr;
            gets_.push_back(get);
            get->tries = {.endpoint = &endpoint_of(*get), .submitted_ns = now_ns_};
            wait_for_turn(*get);
        }
    }

    void wait_for_turn(HttpGet& get) {
        get.tries.waiting_since_ns = now_ns_;
        get.tries.endpoint->waiting.push_back(&get);
    }

    HttpEndpointState& endpoint_of(const HttpGet& get) {
        const auto found = endpoints_.find(get.origin->endpoint());
        if (found != endpoints_.end()) return found->second;
        return endpoints_.try_emplace(get.origin->endpoint(), options_.connections_max).first->second;
    }

    void take_cancels() {
        std::unique_lock lock(cancel_mutex_);
        if (cancels_.empty()) return;
        // The loop may not have seen the owner's latest requests.
        take_submitted();
        for (const void* owner : cancels_) {
            for (std::size_t i = 0; i < gets_.size();) {
                HttpGet& get = *gets_[i];
                if (get.owner != owner) {
                    ++i;
                    continue;
                }
                drop(get);
            }
        }
        cancels_.clear();
        cancels_done_ = cancels_requested_;
        cancelled_.notify_all();
    }

    // Starts all tries that may start. Returns the time at which the next is due.
    std::int64_t start_due() {
        std::int64_t wake_ns = now_ns_ + kPollMax_ns;
        for (HttpGet* get : gets_) {
            if (get->tries.due_ns != 0 && get->tries.due_ns <= now_ns_) {
                get->tries.due_ns = 0;
                wait_for_turn(*get);
            } else if (get->tries.due_ns != 0) {
                wake_ns = std::min(wake_ns, get->tries.due_ns);
            }
            if (options_.hedge) wake_ns = std::min(wake_ns, late_ns(*get));
        }
        for (HttpGet* get : std::exchange(late_, {})) {
            const RemotePayer* payer = get->payer.get();
            const bool paid_for = payer == nullptr || payer->ready_at_ns(get->into.size()) <= now_ns_;
            if (paid_for && may_start(*get->tries.endpoint)) hedge(*get);
        }
        for (auto& [name, endpoint] : endpoints_) {
            look_for_outage(name, endpoint);
            give_up_waiting(endpoint);
            while (!endpoint.waiting.empty() && may_start(endpoint)) {
                HttpGet& get = *endpoint.waiting.front();
                endpoint.waiting.pop_front();
                if (get.tries.failing_since_ns != 0) get.tries.failing_since_ns += now_ns_ - get.tries.waiting_since_ns;
                start(get, get.tries.running);
            }
            if (!endpoint.waiting.empty() && endpoint.next_try_ns() > now_ns_)
                wake_ns = std::min(wake_ns, endpoint.next_try_ns());
        }
        return wake_ns;
    }

    // Requests that are hardly retried, as those to peers, do not wait for an endpoint that fails.
    bool may_start(const HttpEndpointState& endpoint) const {
        const bool waits_for_backoff =
            options_.retry_for_ns >= HttpEndpointState::kBackoffMost_ns && endpoint.next_try_ns() > now_ns_;
        return !waits_for_backoff && endpoint.limit.may_start();
    }

    void look_for_outage(const std::string& name, HttpEndpointState& endpoint) {
        if (endpoint.silent_since_ns == 0) return;
        if (endpoint.is_outage) {
            outages_.tell(name, endpoint.end_forgotten_outage(now_ns_));
        } else if (!is_answering(endpoint)) {
            outages_.tell(name, endpoint.begin_outage_if_silent(now_ns_));
        }
    }

    // The endpoint has answered. If this ends an outage, retries that wait for their backoff are due at once.
    void on_answer(const HttpGet& first) {
        HttpEndpointState& endpoint = *first.tries.endpoint;
        auto ended_outage = endpoint.answered(now_ns_);
        if (!ended_outage) return;
        outages_.tell(first.origin->endpoint(), std::move(ended_outage));
        for (HttpGet* get : gets_) {
            if (get->tries.endpoint == &endpoint && get->tries.due_ns != 0 && get->tries.retry_after_ns == 0)
                get->tries.due_ns = now_ns_;
        }
    }

    // Fails requests that wait for an endpoint that has long been silent: without a turn they would wait forever.
    void give_up_waiting(HttpEndpointState& endpoint) {
        if (endpoint.silent_since_ns == 0 || is_answering(endpoint)) return;
        const auto given_up = std::ranges::stable_partition(endpoint.waiting, [&](const HttpGet* get) {
            return !endpoint.is_given_up(get->tries.submitted_ns, retry_for_ns(*get));
        });
        if (given_up.empty()) return;
        const std::vector<HttpGet*> expired(given_up.begin(), given_up.end());
        endpoint.waiting.erase(given_up.begin(), given_up.end());
        for (HttpGet* get : expired) {
            get->system_errno = endpoint.last_errno;
            get->message = get->url + endpoint.last_failure + "; given up after " + std::to_string(get->attempts) +
                           " tries, because all requests to the server fail";
            end(*get, HttpOutcome::failed);
        }
    }

    // True if an answer has begun to arrive. A long answer may take long to end.
    bool is_answering(const HttpEndpointState& endpoint) const {
        return std::ranges::any_of(gets_, [&](const auto& get) {
            const auto has_begun = [](const HttpAttempt* attempt) {
                return attempt != nullptr && attempt->received_bytes() > 0;
            };
            return get->tries.endpoint == &endpoint && (has_begun(get->tries.running) || has_begun(get->tries.hedge));
        });
    }

    std::int64_t retry_for_ns(const HttpGet& get) const {
        return get.retry_for_ns != 0 ? std::min(get.retry_for_ns, options_.retry_for_ns) : options_.retry_for_ns;
    }

    // Returns the time at which the request will be late. Adds a request that is late already to `late_`.
    std::int64_t late_ns(HttpGet& get) {
        constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
        if (get.tries.running == nullptr || get.tries.hedged || get.ask == HttpRequestKind::text) return kNever;
        const auto late_after_ns = get.tries.endpoint->late_after.ns();
        if (!late_after_ns) return kNever;
        const std::int64_t late_ns = get.tries.running->began_ns() + *late_after_ns;
        if (late_ns > now_ns_) return late_ns;
        late_.push_back(&get);
        return kNever;
    }

    void hedge(HttpGet& get) {
        get.tries.hedged = true;
        if (RemotePayer* payer = get.payer.get()) {
            get.tries.deposit_bytes = get.into.size();
            payer->pay(get.tries.deposit_bytes, now_ns_);
        }
        hedges_.fetch_add(1, std::memory_order_relaxed);
        start(get, get.tries.hedge);
    }

    void start(HttpGet& get, HttpAttempt*& try_slot) {
        HttpAttempt& attempt = take_idle_attempt();
        ++get.attempts;
        requests_.fetch_add(1, std::memory_order_relaxed);
        get.tries.endpoint->limit.started();
        get.tries.endpoint->try_started(random_(), now_ns_);
        try_slot = &attempt;
        if (get.wants_times) {
            // The time of this turn may be some milliseconds old.
            now_ns_ = clock_.now_ns();
            if (get.attempts == 1) get.times.first_try_ns = now_ns_;
            ++get.times.tries;
        }
        if (auto begun = attempt.begin(get, options_.settings, now_ns_); !begun) {
            get.tries.endpoint->limit.ended();
            refund_deposit(get, try_slot);
            release_attempt(try_slot);
            if (get.tries.running != nullptr) return;
            get.message = begun.error().message;
            get.system_errno = EACCES;
            settle(get, Verdict::refused);
            return;
        }
        const CURLMcode added = curl_multi_add_handle(multi_, attempt.easy());
        LARDER_ASSERT(added == CURLM_OK);
    }

    bool take_finished() {
        bool any = false;
        int left = 0;
        while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
            if (message->msg != CURLMSG_DONE) continue;
            any = true;
            const CURLcode code = message->data.result;
            char* attached = nullptr;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &attached);
            finish_attempt(*reinterpret_cast<HttpAttempt*>(attached), code);
        }
        return any;
    }

    void finish_attempt(HttpAttempt& attempt, CURLcode code) {
        HttpGet& get = attempt.get();
        const Verdict verdict = attempt.finish(code);
        now_ns_ = clock_.now_ns();
        HttpEndpointState& endpoint = *get.tries.endpoint;
        if (verdict == Verdict::overloaded || get.system_errno == ETIMEDOUT) {
            overloads_.fetch_add(1, std::memory_order_relaxed);
            endpoint.limit.overloaded(now_ns_);
        } else if (verdict == Verdict::ok) {
            endpoint.late_after.add(now_ns_ - attempt.began_ns());
            endpoint.limit.succeeded(attempt.first_byte_ns(), now_ns_);
        } else {
            endpoint.limit.ended();
        }
        if (verdict == Verdict::overloaded || verdict == Verdict::failed) {
            // Leaves out the URL, because the failure may be reported for other requests.
            endpoint.failed(get.message.substr(std::min(get.url.size(), get.message.size())), get.system_errno,
                            now_ns_);
        } else {
            on_answer(get);
        }
        if (verdict != Verdict::ok) pay_for(get, attempt);
        const bool was_hedge = &attempt == get.tries.hedge;
        if (get.wants_times) attempt.note_times(get.times);
        curl_multi_remove_handle(multi_, attempt.easy());
        refund_deposit(get, &attempt);
        release_attempt(was_hedge ? get.tries.hedge : get.tries.running);
        if (verdict != Verdict::ok) {
            // The other try may still succeed.
            if (get.tries.running != nullptr || get.tries.hedge != nullptr) return;
        } else {
            if (was_hedge) hedges_won_.fetch_add(1, std::memory_order_relaxed);
            end_attempt(get, get.tries.running);
            end_attempt(get, get.tries.hedge);
        }
        settle(get, verdict);
    }

    // Ends the get or plans the next try, depending on the verdict.
    void settle(HttpGet& get, Verdict verdict) {
        switch (verdict) {
            case Verdict::ok: return end(get, HttpOutcome::ok);
            case Verdict::missing: return end(get, HttpOutcome::missing);
            case Verdict::refused: return end(get, HttpOutcome::failed);
            case Verdict::changed:
                if (++get.tries.changes >= kChangedAnswersNeeded) return end(get, HttpOutcome::changed);
                break;
            case Verdict::failed:
            case Verdict::overloaded: break;
        }
        if (get.tries.failing_since_ns == 0) get.tries.failing_since_ns = now_ns_;
        ++get.tries.failures;
        const std::int64_t delay_ns = retry_delay_ns(get.tries.failures, random_(), get.tries.retry_after_ns);
        if (now_ns_ + delay_ns - get.tries.failing_since_ns > retry_for_ns(get)) {
            get.message += "; given up after " + std::to_string(get.attempts) + " tries";
            return end(get, HttpOutcome::failed);
        }
        retries_.fetch_add(1, std::memory_order_relaxed);
        get.tries.hedged = false;
        get.tries.due_ns = now_ns_ + delay_ns;
    }

    // Pays for the bytes of a try that are not the answer.
    void pay_for(HttpGet& get, const HttpAttempt& attempt) {
        const std::uint64_t bytes = attempt.received_bytes();
        get.extra_bytes += bytes;
        if (get.payer != nullptr && bytes > 0) get.payer->pay(bytes, now_ns_);
    }

    void refund_deposit(HttpGet& get, const HttpAttempt* ended) {
        if (ended != get.tries.hedge || get.tries.deposit_bytes == 0) return;
        get.payer->refund(std::exchange(get.tries.deposit_bytes, 0));
    }

    void end(HttpGet& get, HttpOutcome outcome) {
        get.outcome = outcome;
        forget(get);
        get.done(get);
    }

    // Ends a get without calling `done`.
    void drop(HttpGet& get) {
        end_attempt(get, get.tries.running);
        end_attempt(get, get.tries.hedge);
        std::erase(get.tries.endpoint->waiting, &get);
        forget(get);
    }

    void forget(HttpGet& get) {
        const auto found = std::ranges::find(gets_, &get);
        LARDER_ASSERT(found != gets_.end());
        std::swap(*found, gets_.back());
        gets_.pop_back();
    }

    void end_attempt(HttpGet& get, HttpAttempt*& attempt) {
        if (attempt == nullptr) return;
        pay_for(get, *attempt);
        refund_deposit(get, attempt);
        get.tries.endpoint->limit.ended();
        curl_multi_remove_handle(multi_, attempt->easy());
        release_attempt(attempt);
    }

    HttpAttempt& take_idle_attempt() {
        if (idle_ != nullptr) return *std::exchange(idle_, idle_->next);
        attempts_.push_back(std::make_unique<HttpAttempt>());
        return *attempts_.back();
    }

    void release_attempt(HttpAttempt*& attempt) {
        attempt->clear();
        attempt->next = std::exchange(idle_, attempt);
        attempt = nullptr;
    }

    const HttpTransfersOptions options_;
    SteadyClock clock_;
    std::minstd_rand random_{static_cast<std::minstd_rand::result_type>(clock_.now_ns())};
    CURLM* multi_;
    std::atomic<bool> stopping_{false};
    std::atomic<HttpGet*> submitted_{nullptr};
    std::atomic<std::uint64_t> requests_{0};
    std::atomic<std::uint64_t> retries_{0};
    std::atomic<std::uint64_t> overloads_{0};
    std::atomic<std::uint64_t> hedges_{0};
    std::atomic<std::uint64_t> hedges_won_{0};
    HttpOutages outages_;

    std::mutex cancel_mutex_;  // guards the next four members
    std::condition_variable cancelled_;
    std::vector<const void*> cancels_;
    std::uint64_t cancels_requested_ = 0;
    std::uint64_t cancels_done_ = 0;

    // Used on the transfers' thread only.
    std::int64_t now_ns_ = 0;
    std::map<std::string, HttpEndpointState, std::less<>> endpoints_;
    std::vector<HttpGet*> gets_;
    std::vector<std::unique_ptr<HttpAttempt>> attempts_;
    std::vector<HttpGet*> late_;
    HttpAttempt* idle_ = nullptr;

    std::thread thread_;
};

HttpTransfers::HttpTransfers(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
HttpTransfers::~HttpTransfers() = default;

Result<std::unique_ptr<HttpTransfers>> HttpTransfers::start(const HttpTransfersOptions& options) {
    if (auto initialised = init_libcurl(); !initialised) return std::unexpected(initialised.error());
    CURLM* const multi = curl_multi_init();
    if (multi == nullptr) return fail_errno(ENOMEM, "start libcurl's transfers");
    return std::unique_ptr<HttpTransfers>(new HttpTransfers(std::make_unique<Loop>(options, multi)));
}

void HttpTransfers::submit(HttpGet& get) {
    loop_->submit(get);
}

void HttpTransfers::cancel(const void* owner) {
    loop_->cancel(owner);
}

void HttpTransfers::run(HttpGet& get, const std::stop_token& stop) {
    struct Wait {
        std::counting_semaphore<2> ended{0};  // released by the end of the get, by a stop request, or by both
        std::atomic<bool> done{false};
    } wait;
    get.owner = &wait;
    get.context = &wait;
    get.done = [](HttpGet& ended_get) noexcept {
        auto& waits = *static_cast<Wait*>(ended_get.context);
        waits.done = true;
        waits.ended.release();
    };
    submit(get);
    {
        const std::stop_callback on_stop(stop, [&] {
            cancel(&wait);
            wait.ended.release();
        });
        wait.ended.acquire();
    }
    if (wait.done) return;
    get.outcome = HttpOutcome::cancelled;
    get.message = get.url + ": cancelled";
}

HttpStatistics HttpTransfers::statistics() const {
    return loop_->statistics();
}

std::vector<HttpOutage> HttpTransfers::outages() const {
    return loop_->outages();
}

}  // namespace larder::cache
