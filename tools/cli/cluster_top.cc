#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/live.h"
#include "tools/cli/sent_events.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

const std::vector<std::string> kClusterColumns{
    "NODE",      "CACHE",  "QUOTA", "USED",  "JOBS", "GRANTED",   "HEARD",    "LEASE", "DATASET", "NEEDS",
    "EFFECTIVE", "PINNED", "JOB",   "NODES", "f*",   "PREDICTED", "MEASURED", "HITS",  "REMOTE",  "STALL"};

std::string datasets_text(const json::array& datasets, const RowChoice& choice) {
    Table table({"DATASET", ">NEEDS", ">QUOTA", ">USED", ">EFFECTIVE", ">PINNED", ">GRANTED", "JOBS"});
    for (const json::value& value : datasets) {
        const json::object& dataset = as_object(value);
        const UnitFamily family = unit_family_of_row(dataset);
        table.add({text_at(dataset, "name"), bytes_at(dataset, "size_bytes", family),
                   bytes_at(dataset, "quota_bytes", family), bytes_at(dataset, "cached_bytes", family),
                   bytes_at(dataset, "effective_bytes", family), bytes_at(dataset, "pinned_bytes", family),
                   rate_at(dataset, "granted_bytes_per_second"), names_at(dataset, "jobs")});
    }
    table.choose(choice);
    if (table.empty()) return "";
    return "\n" + table.text_within(Screen::columns(), {"JOBS", "PINNED", "EFFECTIVE", "GRANTED", "USED"});
}

std::string jobs_text(const json::array& jobs, const RowChoice& choice) {
    Table table(
        {"JOB", "DATASET", "NODES", ">f*", ">PREDICTED", ">MEASURED", ">HITS", ">GRANTED", ">REMOTE", ">STALL"});
    for (const json::value& value : jobs) {
        const json::object& job = as_object(value);
        if (!flag_at(job, "running")) continue;
        table.add({text_at(job, "name"), text_at(job, "dataset"), names_at(job, "nodes"),
                   rate_at(job, "ideal_bytes_per_second"), rate_at(job, "predicted_bytes_per_second"),
                   rate_at(job, "measured_bytes_per_second"), part_at(job, "hit_ratio"),
                   rate_at(job, "bandwidth_bytes_per_second"), rate_at(job, "measured_remote_bytes_per_second"),
                   part_at(job, "stall_ratio")});
    }
    const bool none_runs = table.empty();
    table.choose(choice);
    return none_runs ? "\nno job runs\n"
                     : "\n" + table.text_within(Screen::columns(), {"NODES", "f*", "REMOTE", "GRANTED", "HITS"});
}

Look make_look(json::object all, const std::string& last_event) {
    const auto text = [all, last_event](const RowChoice& choice) {
        std::string painted = nodes_text(array_at(all, "nodes"), Screen::columns(), choice) +
                              datasets_text(array_at(all, "datasets"), choice) +
                              jobs_text(array_at(all, "jobs"), choice);
        if (!last_event.empty()) painted += "\nlast event: " + last_event + "\n";
        return painted;
    };
    return {.json = std::move(all), .text = text};
}

// Asks for each list in turn, for an allocator that has no stream of events.
Result<Look> ask_for_lists(const Context& context) {
    json::object all;
    for (const char* list : {"nodes", "datasets", "jobs"}) {
        auto answer = call_allocator(context, "GET", std::string("/v1/") + list);
        if (!answer) return std::unexpected(answer.error());
        all["plan"] = count_at(as_object(*answer), "plan");
        all[list] = array_at(as_object(*answer), list);
    }
    return make_look(std::move(all), {});
}

// Paints the state from the allocator's stream of events, until Ctrl-C or `count` looks.
class StreamedTop {
public:
    StreamedTop(const Context& context, const LiveViewOptions& options)
        : context_(context),
          options_(options),
          interval_ns_(static_cast<std::int64_t>(options.interval_s * 1e9)),
          keys_(options.rows, kClusterColumns),
          screen_(context, keys_) {}

    // Follows the stream from the last event on. Returns once all looks are painted; an error if the stream was refused
    // or broke.
    Result<void> follow() {
        events_ = {};
        const std::int64_t status_ms = std::clamp<std::int64_t>(interval_ns_ / 1'000'000, 100, kStatusMax_ms);
        const std::string target =
            "/v1/events/stream?after=" + std::to_string(last_id_) + "&status_ms=" + std::to_string(status_ms);
        return stream_from_allocator(context_, target, kSilence_ms, [this](std::string_view part) {
            events_.add(part, [this](const SentEvent& event) { handle_event(event); });
            return !done();
        });
    }
    bool done() const { return (options_.count > 0 && shown_ == options_.count) || interrupt_.pressed_within(0); }
    bool pressed_within(std::int64_t wait_ms) const { return interrupt_.pressed_within(wait_ms); }
    std::uint64_t looks() const { return shown_; }

private:
    // The longest time between statuses, so that Ctrl-C and a broken connection are noticed even if painting is rare.
    static constexpr std::int64_t kStatusMax_ms = 1000;
    static constexpr std::int64_t kSilence_ms = 5000;

    void handle_event(const SentEvent& event) {
        if (event.id) last_id_ = *event.id;
        json::error_code failure;
        json::value value = json::parse(event.data, failure);
        if (failure || !value.is_object()) return;
        if (event.kind != "status") {
            last_event_ = text_at(value.get_object(), "message");
            return;
        }
        const std::int64_t now_ns = clock_.now_ns();
        // A status may arrive slightly before the interval ends.
        if (done() || (shown_ > 0 && now_ns - painted_ns_ < interval_ns_ * 9 / 10)) return;
        painted_ns_ = now_ns;
        screen_.paint(make_look(std::move(value.get_object()), last_event_));
        ++shown_;
    }

    const Context& context_;
    const LiveViewOptions& options_;
    const std::int64_t interval_ns_;
    const SteadyClock clock_;
    LiveKeys keys_;
    Screen screen_;
    const InterruptWatch interrupt_{[this](std::string_view typed) {
        if (keys_.take(typed)) return true;
        screen_.repaint();
        return false;
    }};
    SentEvents events_;
    std::uint64_t last_id_ = 0;
    std::string last_event_;
    std::uint64_t shown_ = 0;
    std::int64_t painted_ns_ = 0;
};

bool is_temporary(const Error& error) {
    return error.code == ErrorCode::unavailable || error.code == ErrorCode::timeout;
}

// Returns the exit code, or nothing if the allocator has no stream of events.
std::optional<int> show_streamed_top(const Context& context, const LiveViewOptions& options) {
    constexpr std::int64_t kReconnect_ms = 1000;
    StreamedTop top(context, options);
    for (bool loss_reported = false;;) {
        const std::uint64_t before = top.looks();
        const auto followed = top.follow();
        if (top.done()) return kDone;
        if (!followed && !is_temporary(followed.error())) {
            if (top.looks() > 0) return report(context, followed.error());
            std::fprintf(stderr, "larder: cannot follow events: %s; polling instead\n",
                         followed.error().message.c_str());
            return std::nullopt;
        }
        if (!followed && top.looks() == 0) return report(context, followed.error());
        if (top.looks() > before) loss_reported = false;
        if (!std::exchange(loss_reported, true)) {
            const std::string why = followed ? "the allocator ended the stream" : followed.error().message;
            std::fprintf(stderr, "larder: %s; connecting again\n", why.c_str());
        }
        if (top.pressed_within(kReconnect_ms)) return kDone;
    }
}

}  // namespace

int cluster_top(Context context, const LiveViewOptions& options) {
    if (auto checked = check_rows(context, options.rows, kClusterColumns); !checked) {
        return report(context, checked.error());
    }
    context.allocator.waits_for_leader = false;  // Ctrl-C would not end the wait
    if (const auto code = show_streamed_top(context, options)) return *code;
    return show_live(context, options, kClusterColumns, {}, [&context] { return ask_for_lists(context); });
}

}  // namespace larder::cli
