#include "scheduler/simulator/trace_rows.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <vector>

namespace larder::scheduler {
namespace {

std::vector<std::string_view> split(std::string_view line, char separator) {
    std::vector<std::string_view> cells;
    while (true) {
        const std::size_t end = line.find(separator);
        cells.push_back(line.substr(0, end));
        if (end == std::string_view::npos) return cells;
        line.remove_prefix(end + 1);
    }
}

// A cell of one row, with its column's name for messages.
class Cell {
public:
    Cell(std::string_view column, std::string_view text) : column_(column), text_(text) {}

    std::string_view column() const { return column_; }
    Result<void> parse_into(double& value) const {
        double parsed = 0;
        const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), parsed);
        if (error != std::errc() || end != text_.data() + text_.size() || !std::isfinite(parsed))
            return refuse("a number");
        value = parsed;
        return {};
    }
    template <typename Integer>
        requires std::is_integral_v<Integer>
    Result<void> parse_into(Integer& value) const {
        double parsed = 0;
        if (auto number = parse_into(parsed); !number) return number;
        if (parsed != std::floor(parsed) || std::abs(parsed) > 1e9 || (std::is_unsigned_v<Integer> && parsed < 0)) {
            return refuse("a whole number");
        }
        value = static_cast<Integer>(parsed);
        return {};
    }
    Result<void> parse_into(bool& value) const {
        if (text_ != "0" && text_ != "1" && text_ != "true" && text_ != "false") return refuse("0 or 1");
        value = text_ == "1" || text_ == "true";
        return {};
    }
    Result<void> parse_into(std::string& value) const {
        value = text_;
        return {};
    }
    Result<void> parse_into(ServiceClass& value) const {
        if (text_ == "best_effort" || text_ == "best") {
            value = ServiceClass::best_effort;
        } else if (text_ == "soft") {
            value = ServiceClass::soft_deadline;
        } else if (text_ == "strict") {
            value = ServiceClass::strict_deadline;
        } else {
            return refuse("a service (best_effort, soft, strict)");
        }
        return {};
    }

private:
    std::unexpected<Error> refuse(std::string_view wanted) const {
        return fail(ErrorCode::invalid_argument,
                    std::string(column_) + ": \"" + std::string(text_) + "\" is not " + std::string(wanted));
    }

    std::string_view column_;
    std::string_view text_;
};

using Taker = Result<void> (*)(TraceJob& job, const Cell& cell);

template <auto Member>
Result<void> take(TraceJob& job, const Cell& cell) {
    return cell.parse_into(job.*Member);
}

Result<void> ignore(TraceJob&, const Cell&) {
    return {};
}

struct Column {
    std::string_view name;
    Taker take;
};

constexpr std::array kLarderColumns{
    Column{"submit_s", take<&TraceJob::submit_s>},
    Column{"duration_s", take<&TraceJob::duration_s>},
    Column{"gpus", take<&TraceJob::gpus>},
    Column{"name", take<&TraceJob::name>},
    Column{"tenant", take<&TraceJob::tenant>},
    Column{"vc", take<&TraceJob::tenant>},
    Column{"model", take<&TraceJob::model>},
    Column{"gpu_type", take<&TraceJob::gpu_type>},
    Column{"gpus_min", take<&TraceJob::gpus_min>},
    Column{"gpus_max", take<&TraceJob::gpus_max>},
    Column{"priority", take<&TraceJob::priority>},
    Column{"deadline_s", take<&TraceJob::deadline_s>},
    Column{"service", take<&TraceJob::service>},
    Column{"preemptible", take<&TraceJob::preemptible>},
    Column{"opportunistic", take<&TraceJob::opportunistic>},
    Column{"elastic", take<&TraceJob::elastic>},
};

// The columns of Tiresias, and those that Chronus adds. expect_time_list holds times after the submission by which a
// job should end, and expect_value_list what its result is then worth. Soft deadlines have several, separated by "-";
// the first is the deadline.
template <double ValueUntil::* Member>
Result<void> take_expected(TraceJob& job, const Cell& cell) {
    std::string all;
    if (auto taken = cell.parse_into(all); !taken) return taken;
    std::string_view rest = all;
    for (std::size_t i = 0;; ++i) {
        if (i == job.values.size()) job.values.push_back({.until_s = kNever, .value = kNever});
        const std::size_t end = std::min(rest.find_first_of("-;|"), rest.size());
        if (auto read = Cell(cell.column(), rest.substr(0, end)).parse_into(job.values[i].*Member); !read) return read;
        if (end == rest.size()) return {};
        rest.remove_prefix(end + 1);
    }
}

constexpr std::array kTiresiasColumns{
    Column{"job_id", take<&TraceJob::name>},
    Column{"num_gpu", take<&TraceJob::gpus>},
    Column{"submit_time", take<&TraceJob::submit_s>},
    Column{"iterations", ignore},
    Column{"model_name", take<&TraceJob::model>},
    Column{"duration", take<&TraceJob::duration_s>},
    Column{"interval", ignore},
    Column{"user", take<&TraceJob::tenant>},
    Column{"expect_time_list", take_expected<&ValueUntil::until_s>},
    Column{"expect_value_list", take_expected<&ValueUntil::value>},
    Column{"best_effort", ignore},
    Column{"job_type", take<&TraceJob::service>},
};

// The reading of a row's deadline.
enum class Deadlines : std::uint8_t {
    point_in_time,    // Larder's: strict if the row names no service; an error with best effort
    after_submission  // Chronus's: also given, and ignored, for best effort
};

class ColumnsReader final : public RowReader {
public:
    ColumnsReader(std::string_view format, std::vector<Column> columns, Deadlines deadlines)
        : format_(format), columns_(std::move(columns)), deadlines_(deadlines) {}

    std::string_view format() const override { return format_; }
    Result<TraceJob> read(std::string_view line) override {
        const auto cells = split(line, ',');
        if (cells.size() != columns_.size()) {
            return fail(ErrorCode::invalid_argument,
                        std::to_string(cells.size()) + " cells, but the header has " + std::to_string(columns_.size()));
        }
        TraceJob job;
        bool names_service = false;
        for (std::size_t i = 0; i < cells.size(); ++i) {
            if (cells[i].empty()) continue;
            names_service = names_service || columns_[i].name == "service";
            if (auto taken = columns_[i].take(job, Cell(columns_[i].name, cells[i])); !taken) {
                return std::unexpected(taken.error());
            }
        }
        if (auto settled = settle_deadline(job, names_service); !settled) return std::unexpected(settled.error());
        return job;
    }

private:
    Result<void> settle_deadline(TraceJob& job, bool names_service) const {
        if (deadlines_ == Deadlines::after_submission) {
            return settle_values(job);
        } else if (job.service == ServiceClass::best_effort && job.deadline_s != kNever) {
            if (names_service) {
                return fail(ErrorCode::invalid_argument,
                            "deadline_s: a best_effort job has no deadline (service: soft, strict)");
            }
            job.service = ServiceClass::strict_deadline;
        }
        return {};
    }

    // Makes points in time of the times after the submission. A job of best effort has neither deadline nor values.
    static Result<void> settle_values(TraceJob& job) {
        if (job.service == ServiceClass::best_effort) job.values.clear();
        if (job.values.empty()) return {};
        if (job.values.front().until_s == kNever) {
            return fail(ErrorCode::invalid_argument, "expect_value_list: values without times in expect_time_list");
        }
        job.deadline_s = job.submit_s + job.values.front().until_s;
        // Only times: the job has a deadline, and no values.
        if (std::ranges::all_of(job.values, [](const ValueUntil& step) { return step.value == kNever; })) {
            job.values.clear();
        }
        double before_s = 0;
        double value_before = kNever;
        for (ValueUntil& step : job.values) {
            if (step.until_s == kNever || step.value == kNever) {
                return fail(ErrorCode::invalid_argument,
                            "expect_value_list: not as many values as times in expect_time_list");
            }
            if (step.until_s <= before_s || step.value < 0 || step.value > value_before) {
                return fail(ErrorCode::invalid_argument,
                            "expect_time_list: times must rise and values must fall, down to 0");
            }
            before_s = step.until_s;
            value_before = step.value;
            step.until_s += job.submit_s;
        }
        return {};
    }

    std::string_view format_;
    std::vector<Column> columns_;
    Deadlines deadlines_;
};

// Columns: job type, command, steps argument, total steps, arrival, GPUs. Later versions have more columns in front;
// the latest has GPUs, weight and SLO before the arrival.
class GavelReader final : public RowReader {
public:
    std::string_view format() const override { return "gavel"; }
    bool has_header() const override { return false; }
    Result<TraceJob> read(std::string_view line) override {
        const auto cells = split(line, '\t');
        struct CellIndices {
            std::size_t steps, arrival, gpus;
        };
        CellIndices indices{};
        switch (cells.size()) {
            case 6: indices = {.steps = 3, .arrival = 4, .gpus = 5}; break;
            case 7: indices = {.steps = 4, .arrival = 5, .gpus = 6}; break;
            case 10: indices = {.steps = 5, .arrival = 9, .gpus = 6}; break;
            default:
                return fail(ErrorCode::invalid_argument,
                            std::to_string(cells.size()) + " columns, where Gavel's traces have 6, 7 or 10");
        }
        TraceJob job;
        job.model = cells[0];
        if (auto taken = Cell("total_steps", cells[indices.steps]).parse_into(job.total_steps); !taken) {
            return std::unexpected(taken.error());
        }
        if (auto taken = Cell("arrival_time", cells[indices.arrival]).parse_into(job.submit_s); !taken) {
            return std::unexpected(taken.error());
        }
        if (auto taken = Cell("scale_factor", cells[indices.gpus]).parse_into(job.gpus); !taken) {
            return std::unexpected(taken.error());
        }
        if (cells.size() == 10) {
            if (auto taken = Cell("priority_weight", cells[7]).parse_into(job.weight); !taken) {
                return std::unexpected(taken.error());
            }
        }
        return job;
    }
};

Result<std::vector<Column>> columns_of(std::span<const std::string_view> names, std::span<const Column> known) {
    std::vector<Column> columns;
    columns.reserve(names.size());
    for (const std::string_view name : names) {
        const auto found = std::ranges::find(known, name, &Column::name);
        if (found == known.end()) {
            std::string all;
            for (const Column& column : known) all += (all.empty() ? "" : ", ") + std::string(column.name);
            return fail(ErrorCode::invalid_argument, "unknown column \"" + std::string(name) + "\"; known: " + all);
        }
        columns.push_back(*found);
    }
    return columns;
}

}  // namespace

Result<std::unique_ptr<RowReader>> row_reader(std::string_view first_line) {
    if (first_line.contains('\t')) return std::make_unique<GavelReader>();
    const auto names = split(first_line, ',');
    const auto has = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
    const bool tiresias = has("num_gpu");
    const auto columns = columns_of(names, tiresias ? std::span<const Column>(kTiresiasColumns) : kLarderColumns);
    if (!columns) return std::unexpected(columns.error());
    for (const std::string_view needed :
         tiresias ? std::array{"submit_time", "duration", "num_gpu"} : std::array{"submit_s", "duration_s", "gpus"}) {
        if (!has(needed)) {
            return fail(ErrorCode::invalid_argument, "the header has no column " + std::string(needed));
        }
    }
    const bool chronus = has("expect_time_list");
    const std::string_view format = !tiresias ? "larder" : chronus ? "chronus" : "tiresias";
    return std::make_unique<ColumnsReader>(format, *columns,
                                           chronus ? Deadlines::after_submission : Deadlines::point_in_time);
}

}  // namespace larder::scheduler
