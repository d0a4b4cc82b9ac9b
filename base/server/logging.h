#pragma once

// Structured logs: one line per event, with a fixed message and key=value fields, so that people and programs can
// search them: `log_info("dataset added", {{"dataset", name}, {"blocks", count}})`. Any thread may log. A thread that
// must not wait for the log's disk calls `log_without_waiting` once; its lines then pass through a bounded queue that
// overwrites its oldest line when full, and `log_lines_dropped` counts the lost lines. Before `start_logging`, lines of
// level info and above go to stderr. Do not use this in a child after fork.

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "base/error.h"

namespace larder {

enum class LogLevel : std::uint8_t { trace, debug, info, warn, error };

// Parses "trace", "debug", "info", "warn" or "error".
Result<LogLevel> parse_log_level(std::string_view text);

struct LogOptions {
    LogLevel level = LogLevel::info;
    std::string file;  // empty: stderr, with journald's priority marks if the journal reads stderr
};

// A key and a value. Refers to text it does not own: for use in a call's argument list only.
class LogField {
public:
    LogField(std::string_view key, std::string_view value) : key_(key), value_(value) {}
    LogField(std::string_view key, const std::string& value) : key_(key), value_(std::string_view(value)) {}
    LogField(std::string_view key, const char* value) : key_(key), value_(std::string_view(value)) {}
    LogField(std::string_view key, bool value) : key_(key), value_(value) {}
    LogField(std::string_view key, double value) : key_(key), value_(value) {}
    LogField(std::string_view key, std::signed_integral auto value) : key_(key), value_(std::int64_t{value}) {}
    LogField(std::string_view key, std::unsigned_integral auto value) : key_(key), value_(std::uint64_t{value}) {}

    void append_to(std::string& line) const;

private:
    std::string_view key_;
    std::variant<std::string_view, std::int64_t, std::uint64_t, double, bool> value_;
};

using LogFields = std::initializer_list<LogField>;

// Starts logging. May be called again to change the level, or the file (it is reopened, so a rotated log is left
// alone).
Result<void> start_logging(const LogOptions& options);
// Sets the level only; any thread.
void set_log_level(LogLevel level);
// Writes out the queue and returns to stderr. Later lines are not lost.
void stop_logging();

// Lets the calling thread log through the queue from now on.
void log_without_waiting();
std::uint64_t log_lines_dropped();

void log(LogLevel level, std::string_view message, LogFields fields = {});
inline void log_debug(std::string_view message, LogFields fields = {}) {
    log(LogLevel::debug, message, fields);
}
inline void log_info(std::string_view message, LogFields fields = {}) {
    log(LogLevel::info, message, fields);
}
inline void log_warn(std::string_view message, LogFields fields = {}) {
    log(LogLevel::warn, message, fields);
}
inline void log_error(std::string_view message, LogFields fields = {}) {
    log(LogLevel::error, message, fields);
}

}  // namespace larder
