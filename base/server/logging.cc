#include "base/server/logging.h"

#include <spdlog/async.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace larder {
namespace {

constexpr std::size_t kQueueLines = 4096;
constexpr std::array<std::string_view, 5> kLevelNames{"trace", "debug", "info", "warn", "error"};

std::atomic<LogLevel> g_level = LogLevel::info;
thread_local bool t_without_waiting = false;

spdlog::level::level_enum spdlog_level(LogLevel level) {
    switch (level) {
        case LogLevel::trace: return spdlog::level::trace;
        case LogLevel::debug: return spdlog::level::debug;
        case LogLevel::info: return spdlog::level::info;
        case LogLevel::warn: return spdlog::level::warn;
        case LogLevel::error: return spdlog::level::err;
    }
    return spdlog::level::err;
}

// systemd names the journal's stream as DEVICE:INODE; stderr may have been redirected since.
bool journal_reads_stderr() {
    const char* stream = std::getenv("JOURNAL_STREAM");
    struct stat status{};
    if (stream == nullptr || ::fstat(STDERR_FILENO, &status) != 0) return false;
    return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino) == stream;
}

// Writes "<6>", journald's form of a line's priority. The journal adds the time itself.
class JournalPriority final : public spdlog::custom_flag_formatter {
public:
    void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& into) override {
        char digit = '7';
        if (message.level == spdlog::level::info) digit = '6';
        if (message.level == spdlog::level::warn) digit = '4';
        if (message.level >= spdlog::level::err) digit = '3';
        into.push_back('<');
        into.push_back(digit);
        into.push_back('>');
    }
    std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JournalPriority>(); }
};

std::unique_ptr<spdlog::formatter> make_formatter(bool journal) {
    auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
    if (journal) {
        formatter->add_flag<JournalPriority>('*').set_pattern("%*%v");
    } else {
        formatter->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %-7l %v");
    }
    return formatter;
}

// Two loggers on one sink: one waits, one queues.
struct Loggers {
    std::shared_ptr<spdlog::details::thread_pool> pool;  // the queue; its destructor writes out what is left
    std::shared_ptr<spdlog::logger> waiting;
    std::shared_ptr<spdlog::logger> queued;
};

std::mutex g_mutex;
std::shared_ptr<const Loggers> g_loggers;
std::uint64_t g_dropped_before = 0;  // by queues that no longer exist

std::shared_ptr<const Loggers> make_loggers(spdlog::sink_ptr sink, bool journal, bool with_queue) {
    sink->set_formatter(make_formatter(journal));
    auto loggers = std::make_shared<Loggers>();
    loggers->waiting = std::make_shared<spdlog::logger>("larder", sink);
    loggers->waiting->set_level(spdlog::level::trace);
    loggers->waiting->flush_on(spdlog::level::trace);
    if (with_queue) {
        loggers->pool = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
        loggers->queued = std::make_shared<spdlog::async_logger>("larder", std::move(sink), loggers->pool,
                                                                 spdlog::async_overflow_policy::overrun_oldest);
        loggers->queued->set_level(spdlog::level::trace);
        loggers->queued->flush_on(spdlog::level::warn);
    }
    return loggers;
}

std::shared_ptr<const Loggers> current_loggers() {
    const std::lock_guard lock(g_mutex);
    if (!g_loggers) g_loggers = make_loggers(std::make_shared<spdlog::sinks::stderr_sink_mt>(), false, false);
    return g_loggers;
}

void replace_loggers(std::shared_ptr<const Loggers> next) {
    std::shared_ptr<const Loggers> last;
    const std::lock_guard lock(g_mutex);
    if (g_loggers && g_loggers->pool) g_dropped_before += g_loggers->pool->overrun_counter();
    last = std::exchange(g_loggers, std::move(next));
}

// Escapes names and paths, which come from users: a line break in one must not look like a new line of the log.
void append_escaped(std::string& line, std::string_view text, bool quoted) {
    constexpr std::string_view hex = "0123456789abcdef";
    for (const char letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        if (letter == '\n') {
            line += "\\n";
        } else if (byte < 0x20 || byte == 0x7f) {
            line += {'\\', 'x', hex[byte >> 4], hex[byte & 15]};
        } else {
            if (quoted && (letter == '"' || letter == '\\')) line += '\\';
            line += letter;
        }
    }
}

void append_value(std::string& line, std::string_view value) {
    const bool plain = !value.empty() && value.find_first_of(" \"=\\") == std::string_view::npos;
    if (!plain) line += '"';
    append_escaped(line, value, !plain);
    if (!plain) line += '"';
}

}  // namespace

Result<LogLevel> parse_log_level(std::string_view text) {
    for (std::size_t level = 0; level < kLevelNames.size(); ++level) {
        if (kLevelNames[level] == text) return static_cast<LogLevel>(level);
    }
    return fail(ErrorCode::invalid_argument,
                "\"" + std::string(text) + "\" is not a log level: expected trace, debug, info, warn or error");
}

void LogField::append_to(std::string& line) const {
    line += ' ';
    line += key_;
    line += '=';
    if (const auto* text = std::get_if<std::string_view>(&value_)) {
        append_value(line, *text);
    } else if (const auto* flag = std::get_if<bool>(&value_)) {
        line += *flag ? "true" : "false";
    } else if (const auto* number = std::get_if<double>(&value_)) {
        fmt::format_to(std::back_inserter(line), "{:.6g}", *number);
    } else if (const auto* whole = std::get_if<std::int64_t>(&value_)) {
        line += std::to_string(*whole);
    } else {
        line += std::to_string(std::get<std::uint64_t>(value_));
    }
}

Result<void> start_logging(const LogOptions& options) {
    try {
        spdlog::sink_ptr sink;
        if (options.file.empty()) {
            sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
        } else {
            sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
        }
        replace_loggers(make_loggers(std::move(sink), options.file.empty() && journal_reads_stderr(), true));
    } catch (const std::exception& error) {
        return fail(ErrorCode::io,
                    "cannot log to " + (options.file.empty() ? "stderr" : options.file) + ": " + error.what());
    }
    set_log_level(options.level);
    return {};
}

void set_log_level(LogLevel level) {
    g_level.store(level, std::memory_order_relaxed);
}

void stop_logging() {
    replace_loggers(nullptr);
}

void log_without_waiting() {
    t_without_waiting = true;
}

std::uint64_t log_lines_dropped() {
    const std::lock_guard lock(g_mutex);
    return g_dropped_before + (g_loggers && g_loggers->pool ? g_loggers->pool->overrun_counter() : 0);
}

void log(LogLevel level, std::string_view message, LogFields fields) {
    if (level < g_level.load(std::memory_order_relaxed)) return;
    try {
        std::string line;
        append_escaped(line, message, false);
        for (const LogField& field : fields) field.append_to(line);
        const auto loggers = current_loggers();
        const bool queue = t_without_waiting && loggers->queued;
        (queue ? loggers->queued : loggers->waiting)->log(spdlog_level(level), line);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "larder: cannot log: %s\n", error.what());
    }
}

}  // namespace larder
