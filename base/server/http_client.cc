#include "base/server/http_client.h"

#include <boost/asio/ip/address.hpp>
#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <ranges>

#include "base/environment.h"
#include "base/file.h"
#include "base/server/http_target.h"
#include "base/server/libcurl.h"

namespace larder {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Steady = std::chrono::steady_clock;

constexpr std::size_t kHeaderBytesMax = 64u << 10;
constexpr long kConnectionLifetime_s = 60;
// A machine that is off must not use up the time in which another server could answer.
constexpr std::int64_t kConnectTimeoutAmongSeveral_ms = 2'000;

std::string url_of(const HttpEndpoint& endpoint, bool tls) {
    if (!endpoint.path.empty()) return "http://localhost/";
    const bool v6 = endpoint.host.contains(':');
    return std::string(tls ? "https://" : "http://") + (v6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" +
           std::to_string(endpoint.port) + "/";
}

void set_common(CURL* easy, const std::string& url, std::int64_t timeout_ms) {
    curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
    curl_easy_setopt(easy, CURLOPT_PROXY, "");  // not even the proxy of the environment
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(easy, CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(timeout_ms));
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_ms));
}

// True if a server that gave no answer in plain HTTP speaks TLS.
bool speaks_tls(const HttpEndpoint& endpoint) {
    constexpr std::int64_t kTimeout_ms = 10'000;
    if (endpoint.tls || !endpoint.path.empty()) return false;
    CURL* easy = curl_easy_init();
    set_common(easy, url_of(endpoint, true), kTimeout_ms);
    curl_easy_setopt(easy, CURLOPT_CONNECT_ONLY, 1L);
    const CURLcode code = curl_easy_perform(easy);
    curl_easy_cleanup(easy);
    return code == CURLE_OK || code == CURLE_PEER_FAILED_VERIFICATION;
}

void set_tls(CURL* easy, const HttpClientOptions& options) {
    curl_easy_setopt(easy, CURLOPT_CERTINFO, 1L);  // errors tell the certificate's names
    if (!options.ca_file.empty()) {
        curl_easy_setopt(easy, CURLOPT_CAINFO, options.ca_file.c_str());
        curl_easy_setopt(easy, CURLOPT_CAPATH, nullptr);  // the system's authorities are then not trusted
    } else {
        const std::string file = environment("SSL_CERT_FILE");
        const std::string directory = environment("SSL_CERT_DIR");
        if (!file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, file.c_str());
        if (!directory.empty()) curl_easy_setopt(easy, CURLOPT_CAPATH, directory.c_str());
    }
    if (options.certificate_file.empty()) return;
    curl_easy_setopt(easy, CURLOPT_SSLCERT, options.certificate_file.c_str());
    curl_easy_setopt(easy, CURLOPT_SSLKEY, options.key_file.c_str());
}

std::unexpected<Error> no_endpoint(std::string_view text) {
    return fail(
        ErrorCode::invalid_argument,
        "\"" + std::string(text) + "\" is not an endpoint: expected unix:PATH, http://HOST:PORT or https://HOST:PORT");
}

}  // namespace

Result<HttpEndpoint> parse_http_endpoint(std::string_view text) {
    const std::string_view endpoint_text = text;
    const auto skip = [&](std::string_view prefix) {
        if (!text.starts_with(prefix)) return false;
        text.remove_prefix(prefix.size());
        return true;
    };
    const bool tls = skip("https://");
    const bool plain = !tls && skip("http://");
    const bool named_unix = !tls && !plain && skip("unix:");
    if (text.find("://") != std::string_view::npos) return no_endpoint(endpoint_text);
    if (named_unix || (!tls && !plain && text.find('/') != std::string_view::npos)) {
        if (text.empty()) return no_endpoint(endpoint_text);
        if (text.size() >= 108) return fail(ErrorCode::invalid_argument, "socket path too long: " + std::string(text));
        return HttpEndpoint{.path = std::string(text)};
    }
    if (text.ends_with('/')) text.remove_suffix(1);
    auto host_port = parse_host_port(text);
    if (!host_port || host_port->host.find_first_of("/@?# ") != std::string::npos) return no_endpoint(endpoint_text);
    // Certificates may name "localhost", which parse_host_port has replaced by an address.
    if (text.starts_with("localhost:")) host_port->host = "localhost";
    error_code not_an_address;
    asio::ip::make_address(host_port->host, not_an_address);
    if (not_an_address && !tls && !plain) return no_endpoint(endpoint_text);
    return HttpEndpoint{.host = std::move(host_port->host), .port = host_port->port, .tls = tls};
}

std::vector<std::string> split_http_endpoints(std::string_view text) {
    std::vector<std::string> endpoints;
    for (const auto part : std::views::split(text, ',')) {
        std::string_view endpoint(part);
        while (endpoint.starts_with(' ')) endpoint.remove_prefix(1);
        while (endpoint.ends_with(' ')) endpoint.remove_suffix(1);
        endpoints.emplace_back(endpoint);
    }
    return endpoints;
}

Result<void> check_http_endpoints(std::string_view text) {
    for (const std::string& endpoint : split_http_endpoints(text)) {
        if (const auto parsed = parse_http_endpoint(endpoint); !parsed) return std::unexpected(parsed.error());
    }
    return {};
}

Result<HttpClientOptions> http_client_options(const HttpCredentials& credentials) {
    HttpClientOptions options{.ca_file = credentials.ca_file,
                              .certificate_file = credentials.certificate_file,
                              .key_file = credentials.key_file};
    if (credentials.token_file.empty()) return options;
    const auto text = read_file(credentials.token_file);
    if (!text) return std::unexpected(text.error().within("the token"));
    options.bearer_token = text->substr(0, text->find_first_of("\r\n"));
    if (options.bearer_token.empty()) {
        return fail(ErrorCode::invalid_argument, "the first line of " + credentials.token_file + " has no token");
    }
    return options;
}

// One request and its answer.
class HttpClient::Transfer {
public:
    Transfer(CURL* easy, const std::string& address, const HttpClientOptions& options)
        : easy_(easy), address_(address), options_(options) {}
    ~Transfer() {
        curl_slist_free_all(headers_);
        curl_easy_reset(easy_);  // keeps the connection
    }
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

    void limit_connecting(std::int64_t timeout_ms) { connect_timeout_ms_ = timeout_ms; }
    // After an error: true if the server may have the request.
    bool may_be_taken() const { return connected_; }

    Result<HttpResponse> run(const std::string& method, const std::string& target, std::string_view body,
                             const std::function<bool(std::string_view part)>* take) {
        const auto endpoint = parse_http_endpoint(address_);
        if (!endpoint) return std::unexpected(endpoint.error());
        take_ = take;
        const std::int64_t timeout_ms = std::max<std::int64_t>(options_.timeout_ms, 0);
        set_common(easy_, url_of(*endpoint, endpoint->tls), timeout_ms);
        if (connect_timeout_ms_ > 0 && (timeout_ms == 0 || connect_timeout_ms_ < timeout_ms)) {
            curl_easy_setopt(easy_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(connect_timeout_ms_));
        }
        if (!endpoint->path.empty()) curl_easy_setopt(easy_, CURLOPT_UNIX_SOCKET_PATH, endpoint->path.c_str());
        if (endpoint->tls) set_tls(easy_, options_);
        if (options_.uses_environment_proxy) curl_easy_setopt(easy_, CURLOPT_PROXY, nullptr);
        curl_easy_setopt(easy_, CURLOPT_MAXLIFETIME_CONN, kConnectionLifetime_s);
        curl_easy_setopt(easy_, CURLOPT_CUSTOMREQUEST, method.c_str());
        curl_easy_setopt(easy_, CURLOPT_REQUEST_TARGET, target.c_str());
        if (!body.empty() || method == "POST" || method == "PUT") {
            curl_easy_setopt(easy_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
            curl_easy_setopt(easy_, CURLOPT_POSTFIELDS, body.empty() ? "" : body.data());
            const bool names_type = std::ranges::any_of(
                options_.headers, [](const auto& header) { return header.first == "Content-Type"; });
            if (!names_type) add_header(body.empty() ? "Content-Type:" : "Content-Type: application/json");
            add_header("Expect:");  // no wait for 100-continue: a server that refuses the body answers at once
        }
        if (!options_.bearer_token.empty()) add_header("Authorization: Bearer " + options_.bearer_token);
        for (const auto& [name, value] : options_.headers) add_header(name + ": " + value);
        curl_easy_setopt(easy_, CURLOPT_HTTPHEADER, headers_);
        curl_easy_setopt(easy_, CURLOPT_HEADERFUNCTION, &Transfer::take_header);
        curl_easy_setopt(easy_, CURLOPT_HEADERDATA, this);
        curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, &Transfer::take_body);
        curl_easy_setopt(easy_, CURLOPT_WRITEDATA, this);
        curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, message_);
        if (take_ != nullptr && timeout_ms > 0) {
            curl_easy_setopt(easy_, CURLOPT_TIMEOUT_MS, 0L);
            curl_easy_setopt(easy_, CURLOPT_NOPROGRESS, 0L);
            curl_easy_setopt(easy_, CURLOPT_XFERINFOFUNCTION, &Transfer::check_silence);
            curl_easy_setopt(easy_, CURLOPT_XFERINFODATA, this);
        }
        const CURLcode code = curl_easy_perform(easy_);
        if (code == CURLE_OK || receiver_is_done_) return response();
        curl_off_t ready_us = 0;
        curl_easy_getinfo(easy_, CURLINFO_PRETRANSFER_TIME_T, &ready_us);
        connected_ = ready_us > 0;
        if (fault_) return std::unexpected(*fault_);
        return error_of(code, *endpoint);
    }

private:
    void add_header(const std::string& header) { headers_ = curl_slist_append(headers_, header.c_str()); }

    static std::size_t take_header(const char*, std::size_t size, std::size_t count, void* transfer) {
        auto& self = *static_cast<Transfer*>(transfer);
        self.header_bytes_ += size * count;
        return self.header_bytes_ <= kHeaderBytesMax ? size * count : self.too_large("header", kHeaderBytesMax);
    }

    static std::size_t take_body(const char* data, std::size_t size, std::size_t count, void* transfer) {
        auto& self = *static_cast<Transfer*>(transfer);
        try {
            return self.take({data, size * count});
        } catch (const std::exception& error) {
            self.fault_ = Error{ErrorCode::io, "request to " + self.address_ + ": " + error.what(), 0};
            return CURL_WRITEFUNC_ERROR;
        }
    }

    std::size_t take(std::string_view part) {
        if (take_ != nullptr && status() == 200) {
            receiver_is_done_ = !(*take_)(part);
            last_part_at_ = Steady::now();
            return receiver_is_done_ ? CURL_WRITEFUNC_ERROR : part.size();
        }
        if (body_.size() + part.size() > options_.answer_bytes_max) return too_large("body", options_.answer_bytes_max);
        body_ += part;
        return part.size();
    }

    std::size_t too_large(const std::string& what, std::size_t bytes_max) {
        const std::string limit = std::to_string(bytes_max) + " bytes";
        fault_ = Error{ErrorCode::protocol, "read from " + address_ + ": its " + what + " is larger than " + limit, 0};
        return CURL_WRITEFUNC_ERROR;
    }

    // Called once a second, or more often. Ends a stream that has been silent for too long.
    static int check_silence(void* transfer, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
        const auto& self = *static_cast<Transfer*>(transfer);
        return Steady::now() - self.last_part_at_ > std::chrono::milliseconds(self.options_.timeout_ms) ? 1 : 0;
    }

    unsigned status() const {
        long status = 0;
        curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
        return static_cast<unsigned>(status);
    }

    HttpResponse response() {
        HttpResponse response{.status = status(), .content_type = "", .body = std::move(body_)};
        const char* type = nullptr;
        curl_easy_getinfo(easy_, CURLINFO_CONTENT_TYPE, &type);
        if (type != nullptr) response.content_type = type;
        const curl_header* field = nullptr;
        while ((field = curl_easy_nextheader(easy_, CURLH_HEADER, -1, const_cast<curl_header*>(field))) != nullptr) {
            response.headers.emplace_back(field->name, field->value);
        }
        return response;
    }

    // The names of the server's certificate, such as "DNS:localhost, IP Address:127.0.0.1"; empty: unknown.
    std::string certificate_names() const {
        constexpr std::string_view kNames = "X509v3 Subject Alternative Name:";
        constexpr std::string_view kSubject = "Subject:";
        curl_certinfo* chain = nullptr;
        if (curl_easy_getinfo(easy_, CURLINFO_CERTINFO, &chain) != CURLE_OK || chain == nullptr) return {};
        if (chain->num_of_certs < 1) return {};
        std::string subject;
        for (const curl_slist* entry = chain->certinfo[0]; entry != nullptr; entry = entry->next) {
            const std::string_view text = entry->data;
            if (text.starts_with(kNames)) return std::string(text.substr(kNames.size()));
            if (text.starts_with(kSubject)) subject = text.substr(kSubject.size());
        }
        return subject;
    }

    std::unexpected<Error> error_of(CURLcode code, const HttpEndpoint& endpoint) const {
        long system_errno = 0;
        curl_easy_getinfo(easy_, CURLINFO_OS_ERRNO, &system_errno);
        const std::string what = (connected_ ? "read from " : "connect to ") + address_;
        const std::string why = message_[0] != '\0' ? message_ : curl_easy_strerror(code);
        if (code == CURLE_OPERATION_TIMEDOUT || code == CURLE_ABORTED_BY_CALLBACK) {
            return fail(ErrorCode::timeout, what + ": no answer in time");
        }
        if (connected_ && speaks_tls(endpoint)) {
            const std::size_t scheme = address_.find("://");
            return fail(ErrorCode::invalid_argument, address_ + ": the server speaks TLS: write https://" +
                                                         address_.substr(scheme == std::string::npos ? 0 : scheme + 3));
        }
        if (code == CURLE_COULDNT_CONNECT && system_errno != 0) {
            Error error = errno_error(static_cast<int>(system_errno), what);
            // A failure to connect means nobody answers there; only permission_denied keeps its own code.
            if (error.code != ErrorCode::permission_denied) error.code = ErrorCode::unavailable;
            return std::unexpected(std::move(error));
        }
        if (code == CURLE_SSL_CACERT_BADFILE) {
            return fail(ErrorCode::invalid_argument, "CA file: " + why);
        }
        if (code == CURLE_SSL_CERTPROBLEM) {
            return fail(ErrorCode::invalid_argument, "certificate file " + options_.certificate_file + ", key file " +
                                                         options_.key_file + ": " + why);
        }
        if (code == CURLE_URL_MALFORMAT) return fail(ErrorCode::invalid_argument, what + ": " + why);
        if (code == CURLE_PEER_FAILED_VERIFICATION) {
            const bool wrong_name = why.contains("does not match") || why.contains("no alternative certificate");
            if (!wrong_name) return fail(ErrorCode::protocol, what + ": TLS: certificate verify failed: " + why);
            const std::string names = certificate_names();
            return fail(ErrorCode::protocol, what + ": TLS: the server's certificate is for another host" +
                                                 (names.empty() ? "" : ": for " + names) + " (" + why +
                                                 "); connect by a name that the certificate has, or give the server "
                                                 "a certificate with this name");
        }
        // OpenSSL's words tell a refusal from a connection that broke.
        const bool broke = why.contains("unexpected eof") || why.contains("SSL_connect: ");
        const bool tls = code == CURLE_SSL_CONNECT_ERROR || code == CURLE_SSL_CIPHER || why.contains("SSL routines");
        if (!tls || broke) return fail(ErrorCode::unavailable, what + ": " + why);
        const bool plain = why.contains("wrong version number");
        return fail(ErrorCode::protocol,
                    what + ": TLS: " + why + (plain ? "; the server speaks plain HTTP: write http://" : ""));
    }

    CURL* easy_;
    const std::string& address_;
    const HttpClientOptions& options_;
    curl_slist* headers_ = nullptr;
    const std::function<bool(std::string_view part)>* take_ = nullptr;  // of a stream
    bool receiver_is_done_ = false;                                     // `take_` wants no more
    Steady::time_point last_part_at_ = Steady::now();
    std::size_t header_bytes_ = 0;
    std::string body_;
    std::int64_t connect_timeout_ms_ = 0;  // 0: as long as the whole request may take
    bool connected_ = false;
    std::optional<Error> fault_;  // why reading the answer was ended
    char message_[CURL_ERROR_SIZE] = "";
};

void HttpClient::Cleanup::operator()(void* easy) const {
    curl_easy_cleanup(easy);
}

HttpClient::HttpClient(std::string_view endpoints) : endpoints_(split_http_endpoints(endpoints)) {
    if (endpoints_.empty()) endpoints_.emplace_back();  // no endpoint, which each request reports
}

Result<HttpResponse> HttpClient::request_of_any(const std::string& method, const std::string& target,
                                                std::string_view body,
                                                const std::function<bool(std::string_view part)>* take,
                                                const HttpClientOptions& options) {
    if (auto ready = open(); !ready) return std::unexpected(ready.error());
    for (std::size_t tried = 1;; ++tried) {
        Transfer transfer(easy_.get(), endpoints_[current_], options);
        if (endpoints_.size() > 1) transfer.limit_connecting(kConnectTimeoutAmongSeveral_ms);
        auto answer = transfer.run(method, target, body, take);
        const bool in_charge = answer && answer->status != kHttpMisdirected;
        if (in_charge || endpoints_.size() == 1) return answer;
        current_ = (current_ + 1) % endpoints_.size();
        const bool may_have_effect = method != "GET" || take != nullptr;
        if (tried == endpoints_.size() || (!answer && transfer.may_be_taken() && may_have_effect)) return answer;
    }
}

Result<HttpResponse> HttpClient::request(std::string_view method, std::string_view target, std::string_view body,
                                         const HttpClientOptions& options) {
    return request_of_any(std::string(method), std::string(target), body, nullptr, options);
}

Result<void> HttpClient::get_stream(std::string_view target, const std::function<bool(std::string_view part)>& take,
                                    const HttpClientOptions& options) {
    const auto answer = request_of_any("GET", std::string(target), {}, &take, options);
    if (!answer) return std::unexpected(answer.error());
    if (answer->status != 200) return std::unexpected(error_of_response(*answer));
    return {};
}

Result<void> HttpClient::open() {
    if (auto initialised = init_libcurl(); !initialised) return initialised;
    if (!easy_) easy_.reset(curl_easy_init());
    if (!easy_) return fail(ErrorCode::internal, "libcurl: no handle");
    return {};
}

Result<HttpResponse> http_request(const std::string& endpoint, std::string_view method, std::string_view target,
                                  std::string_view body, const HttpClientOptions& options) {
    return HttpClient(endpoint).request(method, target, body, options);
}

Result<void> http_get_stream(const std::string& endpoint, std::string_view target,
                             const std::function<bool(std::string_view part)>& take, const HttpClientOptions& options) {
    return HttpClient(endpoint).get_stream(target, take, options);
}

}  // namespace larder
