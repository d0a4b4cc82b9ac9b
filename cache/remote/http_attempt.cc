#include "cache/remote/http_attempt.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/assert.h"
#include "base/hash.h"

namespace larder::cache {
namespace {

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

std::int64_t tag_of_etag(std::string_view etag) {
    if (etag.starts_with("W/")) etag.remove_prefix(2);
    if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
    if (etag.empty()) return 0;
    std::uint64_t hash = etag.size();
    for (const char c : etag) hash = mix64(hash ^ static_cast<unsigned char>(c));
    const auto tag = static_cast<std::int64_t>(hash >> 1);
    return tag == 0 ? 1 : tag;
}

std::int64_t tag_of_headers(const char* etag, const char* last_modified) {
    if (etag != nullptr) {
        if (const std::int64_t tag = tag_of_etag(etag); tag != 0) return tag;
    }
    if (last_modified == nullptr) return 0;
    const time_t when = curl_getdate(last_modified, nullptr);
    return when <= 0 ? 0 : std::int64_t{when} * 1'000'000'000;
}

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
    headers_are_checked_ = body_is_wanted_ = object_has_changed_ = tag_is_same_ = headers_suffice_ = false;
    fault_.clear();
    error_body_.clear();
    error_[0] = '\0';
    if (get.ask == HttpRequestKind::text) get.body.clear();

    auto signed_headers = get.origin->prepare(easy_, nullptr);
    if (!signed_headers) return std::unexpected(signed_headers.error());
    headers_ = *signed_headers;
    set(easy_, CURLOPT_URL, get.url.c_str());
    curl_easy_setopt(easy_, CURLOPT_HTTPHEADER, headers_);
    if (get.ask == HttpRequestKind::range) {
        const std::uint64_t last = get.offset + get.into.size() - 1;
        set(easy_, CURLOPT_RANGE, (std::to_string(get.offset) + "-" + std::to_string(last)).c_str());
    } else if (get.ask == HttpRequestKind::probe) {
        set(easy_, CURLOPT_RANGE, "0-0");
    }
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
    set(easy_, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    set(easy_, CURLOPT_FOLLOWLOCATION, get.origin->follows_redirects() ? 1L : 0L);
    set(easy_, CURLOPT_MAXREDIRS, kRedirectsMax);
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
        if (get_->body.size() + bytes.size() > kTextBytesMax) {
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
    get_->tag = tag_of_headers(header("etag"), header("last-modified"));
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
    const std::int64_t tag = tag_of_headers(header("etag"), header("last-modified"));
    if (get_->tag != 0 && tag != 0 && tag != get_->tag) {
        object_has_changed_ = true;
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

std::string HttpAttempt::url() const {
    return get_->url;
}

Verdict HttpAttempt::verdict_of_status(int code) const {
    Verdict verdict{.message = url() + ": HTTP " + std::to_string(code)};
    const std::string why = get_->origin->explain(code, error_body_);
    if (!why.empty()) verdict.message += ", " + why;
    curl_off_t retry_after_s = 0;
    curl_easy_getinfo(easy_, CURLINFO_RETRY_AFTER, &retry_after_s);
    verdict.retry_after_ns = std::clamp<std::int64_t>(retry_after_s, 0, 60) * 1'000'000'000;
    switch (code) {
        case 404:
        case 410: verdict.kind = Verdict::Kind::missing; break;
        case 412:
        case 416: verdict.kind = Verdict::Kind::changed; break;
        case 408:
        case 429:
        case 503: verdict.kind = Verdict::Kind::overloaded; break;
        default: verdict.kind = code >= 500 ? Verdict::Kind::failed : Verdict::Kind::refused; break;
    }
    switch (code) {
        case 401:
        case 403:
        case 407: verdict.system_errno = EACCES; break;
        case 503:
        case 429: verdict.system_errno = EBUSY; break;
        default: verdict.system_errno = EREMOTEIO; break;
    }
    if (get_->origin->lacks_bucket(code, error_body_)) {
        verdict.kind = Verdict::Kind::refused;
        verdict.system_errno = ENOENT;
    }
    if (verdict.kind == Verdict::Kind::refused && get_->origin->may_succeed_later(code, error_body_)) {
        verdict.kind = Verdict::Kind::failed;
    }
    return verdict;
}

Verdict HttpAttempt::verdict_of_code(CURLcode code) const {
    Verdict verdict{.kind = Verdict::Kind::failed,
                    .message = url() + ": " + (error_[0] != '\0' ? error_ : curl_easy_strerror(code))};
    switch (code) {
        case CURLE_OPERATION_TIMEDOUT: verdict.system_errno = ETIMEDOUT; break;
        case CURLE_COULDNT_CONNECT: verdict.system_errno = ECONNREFUSED; break;
        case CURLE_COULDNT_RESOLVE_HOST:
        case CURLE_COULDNT_RESOLVE_PROXY: verdict.system_errno = EHOSTUNREACH; break;
        case CURLE_OUT_OF_MEMORY: verdict.system_errno = ENOMEM; break;
        case CURLE_GOT_NOTHING:
            if (get_->url.starts_with("http://")) verdict.message += "; if the server speaks TLS, write https://";
            [[fallthrough]];
        case CURLE_RECV_ERROR:
        case CURLE_SEND_ERROR:
        case CURLE_PARTIAL_FILE: verdict.system_errno = ECONNRESET; break;
        case CURLE_SSL_CONNECT_ERROR:
            verdict.system_errno = EPROTO;
            if (std::strstr(error_, "wrong version number") == nullptr) break;
            verdict.kind = Verdict::Kind::refused;
            verdict.message += "; the server speaks no TLS on this port: write http://";
            break;
        case CURLE_PEER_FAILED_VERIFICATION:
            verdict.message += "; if its CA is not one of the system's, set remote.ca to the file that has the CA";
            [[fallthrough]];
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_SSL_CERTPROBLEM:
        case CURLE_URL_MALFORMAT:
        case CURLE_TOO_MANY_REDIRECTS:
            verdict.kind = Verdict::Kind::refused;
            verdict.system_errno = EACCES;
            break;
        case CURLE_UNSUPPORTED_PROTOCOL:
            // Without a status the answer was not HTTP: bytes left over from the previous answer. A retry may help.
            if (status() != 0) verdict.kind = Verdict::Kind::refused;
            verdict.system_errno = EREMOTEIO;
            break;
        default: verdict.system_errno = EREMOTEIO; break;
    }
    return verdict;
}

Verdict HttpAttempt::finish(CURLcode code) {
    // libcurl does not call `receive` for an empty body.
    if (!headers_are_checked_ && code == CURLE_OK) {
        headers_are_checked_ = true;
        body_is_wanted_ = check_headers();
    }
    get_->status = status();
    if (get_->ask == HttpRequestKind::probe && get_->status == 416) {  // an empty object has no first byte
        get_->object_bytes = 0;
        set_probe_result(true);
    }
    if (headers_suffice_) return {.kind = Verdict::Kind::ok};
    if (object_has_changed_) {
        return {.kind = Verdict::Kind::changed,
                .message = url() + ": the object differs from the one that was indexed"};
    }
    if (!fault_.empty()) return {.system_errno = EREMOTEIO, .message = url() + ": " + fault_};
    if (code != CURLE_OK) return verdict_of_code(code);
    if (!body_is_wanted_) return verdict_of_status(get_->status);
    const bool fills = get_->ask != HttpRequestKind::text && get_->ask != HttpRequestKind::send;
    if (fills && filled_ < get_->into.size()) {
        return {.system_errno = EREMOTEIO, .message = url() + ": fewer bytes arrived than were requested"};
    }
    return {.kind = Verdict::Kind::ok};
}

}  // namespace larder::cache
