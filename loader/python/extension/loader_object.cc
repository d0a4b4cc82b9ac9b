#include "loader/python/extension/loader_object.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "loader/larder.h"
#include "loader/python/extension/batch_object.h"
#include "loader/python/extension/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace larder::python {
namespace {

using SharedWait = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OwnWait = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
constexpr std::size_t kLoopWords = sizeof(TrainingLoop) / sizeof(std::int64_t);
constexpr std::size_t kWaitWords = sizeof(TrainingLoopWait) / sizeof(std::int64_t);
static_assert(sizeof(TrainingLoop) == kLoopWords * sizeof(std::int64_t) && kWaitWords == 2);

// Handles Ctrl-C while the loader waits. Runs Python's signal handlers; returns true if one has raised an exception,
// which the waiting call then raises.
bool interrupted() {
    const nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

// Logs why a call waits, to the logger "larder", which prints warnings unless the program says otherwise.
void warn_daemon_away(const std::string& why) {
    const nb::gil_scoped_acquire gil;
    try {
        const nb::bytes text(why.data(), why.size());
        nb::module_::import_("logging").attr("getLogger")("larder").attr("warning")(
            "waiting: %s", text.attr("decode")("utf-8", "backslashreplace"));
    } catch (nb::python_error& failure) {
        failure.discard_as_unraisable("larder: a warning");
    }
}

// Marks the object as in use while the GIL is released.
class Turn {
public:
    explicit Turn(const std::shared_ptr<BatchReturns>& returns) : returns_(returns) {
        if (returns_->loader_busy) throw std::runtime_error("this loader is in use by another thread");
        returns_->loader_busy = true;
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
        returns_->loader_busy = false;
        destroy_returned();
    }
    // Destroys the batches that other threads dropped meanwhile. Returns true if there were any.
    bool destroy_returned() {
        std::vector<larder::Batch> gone;
        gone.swap(returns_->waiting);
        return !gone.empty();
    }

private:
    std::shared_ptr<BatchReturns> returns_;
};

template <typename Call>
auto without_gil(Call call) {
    const nb::gil_scoped_release released;
    return call();
}

void check_aligned(const void* data) {
    if (reinterpret_cast<std::uintptr_t>(data) % alignof(TrainingLoop) != 0)
        throw nb::value_error("the shared wait is not aligned to 8 bytes");
}

TrainingLoop& own_loop(const OwnWait& wait) {
    if (wait.size() != kLoopWords) throw nb::value_error("the shared wait has a wrong length");
    check_aligned(wait.data());
    return *reinterpret_cast<TrainingLoop*>(wait.data());
}

// The waits of a training loop in another process. `wait` has the words of a TrainingLoop, or those of a
// TrainingLoopWait only: the ns it waited, and since when it waits. None: unknown. The array lives as long as the
// loader reads it.
template <typename Object>
void follow(Object& loader, const std::optional<SharedWait>& wait) {
    if (!wait) return loader.set_training_loop(nullptr);
    if (wait->size() != kWaitWords && wait->size() != kLoopWords)
        throw nb::value_error("the shared wait has a wrong length");
    check_aligned(wait->data());
    const std::shared_ptr<SharedWait> held(new SharedWait(*wait), [](SharedWait* array) {
        const nb::gil_scoped_acquire gil;
        delete array;
    });
    const auto* words = reinterpret_cast<const TrainingLoopWait*>(held->data());
    std::shared_ptr<const protocol::TakeLog> takes;
    if (wait->size() == kLoopWords) takes = {held, &reinterpret_cast<const TrainingLoop*>(held->data())->takes};
    loader.set_training_loop({held, words}, std::move(takes));
}

nb::object to_python(larder::Batch batch, const std::shared_ptr<BatchReturns>& returns) {
    PyObject* object = make_batch(std::move(batch), returns);
    if (object == nullptr) throw nb::python_error();
    return nb::steal(object);
}

nb::bytes to_bytes(const std::vector<std::byte>& bytes) {
    return nb::bytes(bytes.data(), bytes.size());
}

nb::dict to_dict(const LoaderStatistics& statistics) {
    nb::dict dict;
    dict["samples"] = statistics.samples;
    dict["bytes"] = statistics.bytes;
    dict["memory_blocks"] = statistics.memory_blocks;
    dict["peer_blocks"] = statistics.peer_blocks;
    dict["disk_blocks"] = statistics.disk_blocks;
    dict["remote_blocks"] = statistics.remote_blocks;
    dict["remote_bytes"] = statistics.remote_bytes;
    dict["skipped_samples"] = statistics.skipped_samples;
    dict["reconnects"] = statistics.reconnects;
    dict["stall_s"] = static_cast<double>(statistics.stall_ns) / 1e9;
    return dict;
}

void set_connection(ConnectOptions& options, const std::string& dataset, const std::string& job,
                    const std::string& socket, std::uint64_t memory_budget_bytes, double reconnect_timeout_s) {
    options.dataset = dataset;
    options.job = job;
    options.socket = socket;
    options.memory_budget_bytes = memory_budget_bytes;
    options.reconnect_timeout_ms = std::llround(reconnect_timeout_s * 1000);
    options.interrupted = interrupted;
    options.daemon_away = warn_daemon_away;
}

class LoaderObject {
public:
    explicit LoaderObject(const LoaderOptions& options)
        : loader_(value_or_throw(without_gil([&] { return Loader::open(options); }))) {
        update_snapshot();
    }

    nb::object next() {
        Turn turn(returns_);
        auto batch = without_gil([&] { return loader_.next(); });
        // Room may have come back while the failed call was in the loader.
        while (!batch && batch.error().code == ErrorCode::no_space && turn.destroy_returned()) {
            batch = without_gil([&] { return loader_.next(); });
        }
        update_snapshot();
        if (!batch) throw_error(batch.error());
        if (!*batch) return nb::none();
        return to_python(std::move(**batch), returns_);
    }

    nb::bytes state() {
        const Turn turn(returns_);
        return to_bytes(loader_.state());
    }

    nb::bytes state_after(std::uint64_t rank_batches) {
        const Turn turn(returns_);
        return to_bytes(loader_.state_after(rank_batches));
    }

    void restore(const nb::bytes& state) {
        const Turn turn(returns_);
        const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(state.c_str()), state.size());
        value_or_throw(without_gil([&] { return loader_.restore(bytes); }));
        update_snapshot();
    }

    void start_epoch(std::uint64_t epoch) {
        const Turn turn(returns_);
        value_or_throw(without_gil([&] { return loader_.start_epoch(epoch); }));
        update_snapshot();
    }

    std::uint64_t batches_per_epoch() {
        const Turn turn(returns_);
        return loader_.batches_per_epoch();
    }
    std::uint64_t sample_count() {
        const Turn turn(returns_);
        return loader_.sample_count();
    }
    std::vector<std::string> class_names() {
        const Turn turn(returns_);
        return loader_.class_names();
    }
    std::uint64_t epoch() const { return epoch_; }
    void set_training_loop(const std::optional<SharedWait>& wait) {
        const Turn turn(returns_);
        follow(loader_, wait);
    }
    nb::dict statistics() const { return to_dict(statistics_); }

private:
    void update_snapshot() {
        epoch_ = loader_.epoch();
        statistics_ = loader_.statistics();
    }

    Loader loader_;
    std::shared_ptr<BatchReturns> returns_ = std::make_shared<BatchReturns>();
    std::uint64_t epoch_ = 0;
    LoaderStatistics statistics_;
};

class DatasetObject {
public:
    explicit DatasetObject(const ConnectOptions& options)
        : dataset_(value_or_throw(without_gil([&] { return Dataset::open(options); }))) {}

    nb::object fetch(const std::vector<std::uint64_t>& indices) {
        Turn turn(returns_);
        auto batch = without_gil([&] { return dataset_.fetch(indices); });
        while (!batch && batch.error().code == ErrorCode::no_space && turn.destroy_returned()) {
            batch = without_gil([&] { return dataset_.fetch(indices); });
        }
        statistics_ = dataset_.statistics();
        return to_python(value_or_throw(std::move(batch)), returns_);
    }

    std::uint64_t sample_count() const { return dataset_.sample_count(); }
    std::uint64_t total_bytes() const { return dataset_.total_bytes(); }
    std::vector<std::string> class_names() const { return dataset_.class_names(); }
    void set_training_loop(const std::optional<SharedWait>& wait) {
        const Turn turn(returns_);
        follow(dataset_, wait);
    }
    nb::dict statistics() const { return to_dict(statistics_); }

private:
    Dataset dataset_;
    std::shared_ptr<BatchReturns> returns_ = std::make_shared<BatchReturns>();
    LoaderStatistics statistics_;
};

Deal deal_of(const std::string& name) {
    if (name == "automatic") return Deal::automatic;
    if (name == "interleaved") return Deal::interleaved;
    if (name == "contiguous") return Deal::contiguous;
    throw_error(Error{ErrorCode::invalid_argument,
                      "deal is \"" + name + "\"; allowed are \"automatic\", \"interleaved\" and \"contiguous\"", 0});
}

Order order_of(const std::string& name) {
    if (name == "seeded") return Order::seeded;
    if (name == "shared") return Order::shared;
    throw_error(
        Error{ErrorCode::invalid_argument, "order is \"" + name + "\"; allowed are \"seeded\" and \"shared\"", 0});
}

nb::bytes merge_states(const std::vector<nb::bytes>& states) {
    std::vector<std::vector<std::byte>> parts;
    parts.reserve(states.size());
    for (const nb::bytes& state : states) {
        const auto* bytes = static_cast<const std::byte*>(state.data());
        parts.emplace_back(bytes, bytes + state.size());
    }
    auto merged = Loader::merge_states(parts);
    if (!merged) throw_error(merged.error());
    return to_bytes(*merged);
}

void add_loader(nb::module_& module) {
    module.def("merge_states", &merge_states, "states"_a);
    nb::class_<LoaderObject>(module, "Loader")
        .def(
            "__init__",
            [](LoaderObject* self, const std::string& dataset, const std::string& job, const std::string& socket,
               std::uint64_t memory_budget_bytes, double reconnect_timeout_s, std::uint64_t seed, bool shuffle,
               std::uint32_t shuffle_window_blocks, std::uint32_t batch_size, std::uint32_t rank,
               std::uint32_t world_size, std::uint32_t worker, std::uint32_t worker_count, bool drop_last,
               bool skip_failed, const std::string& deal, const std::string& order, std::uint64_t first_epoch,
               bool plan_only) {
                LoaderOptions options;
                set_connection(options, dataset, job, socket, memory_budget_bytes, reconnect_timeout_s);
                options.seed = seed;
                options.shuffle = shuffle;
                options.shuffle_window_blocks = shuffle_window_blocks;
                options.batch_size = batch_size;
                options.rank = rank;
                options.world_size = world_size;
                options.worker = worker;
                options.worker_count = worker_count;
                options.drop_last = drop_last;
                options.skip_failed = skip_failed;
                options.deal = deal_of(deal);
                options.order = order_of(order);
                options.first_epoch = first_epoch;
                options.plan_only = plan_only;
                new (self) LoaderObject(options);
            },
            nb::kw_only(), "dataset"_a, "job"_a, "socket"_a, "memory_budget_bytes"_a, "reconnect_timeout_s"_a, "seed"_a,
            "shuffle"_a, "shuffle_window_blocks"_a, "batch_size"_a, "rank"_a, "world_size"_a, "worker"_a,
            "worker_count"_a, "drop_last"_a, "skip_failed"_a, "deal"_a, "order"_a, "first_epoch"_a, "plan_only"_a)
        .def("next", &LoaderObject::next)
        .def("state", &LoaderObject::state)
        .def("state_after", &LoaderObject::state_after, "rank_batches"_a)
        .def("restore", &LoaderObject::restore, "state"_a)
        .def("start_epoch", &LoaderObject::start_epoch, "epoch"_a)
        .def("batches_per_epoch", &LoaderObject::batches_per_epoch)
        .def("sample_count", &LoaderObject::sample_count)
        .def("class_names", &LoaderObject::class_names)
        .def("epoch", &LoaderObject::epoch)
        .def("set_training_loop", &LoaderObject::set_training_loop, "wait"_a.none())
        .def("statistics", &LoaderObject::statistics);
}

void add_dataset(nb::module_& module) {
    nb::class_<DatasetObject>(module, "Dataset")
        .def(
            "__init__",
            [](DatasetObject* self, const std::string& dataset, const std::string& job, const std::string& socket,
               std::uint64_t memory_budget_bytes, double reconnect_timeout_s) {
                ConnectOptions options;
                set_connection(options, dataset, job, socket, memory_budget_bytes, reconnect_timeout_s);
                new (self) DatasetObject(options);
            },
            nb::kw_only(), "dataset"_a, "job"_a, "socket"_a, "memory_budget_bytes"_a, "reconnect_timeout_s"_a)
        .def("fetch", &DatasetObject::fetch, "indices"_a)
        .def("sample_count", &DatasetObject::sample_count)
        .def("total_bytes", &DatasetObject::total_bytes)
        .def("class_names", &DatasetObject::class_names)
        .def("set_training_loop", &DatasetObject::set_training_loop, "wait"_a.none())
        .def("statistics", &DatasetObject::statistics);
}

}  // namespace

void add_loader_types(nb::module_& module) {
    add_loader(module);
    add_dataset(module);
    module.attr("LOOP_WORDS") = kLoopWords;
    module.def(
        "begin_wait", [](const OwnWait& wait, std::int64_t now_ns) { own_loop(wait).begin_wait(now_ns); }, "wait"_a,
        "now_ns"_a);
    module.def(
        "end_wait", [](const OwnWait& wait, std::int64_t waited_ns) { own_loop(wait).end_wait(waited_ns); }, "wait"_a,
        "waited_ns"_a);
    module.def("parse_bytes", [](const std::string& text) { return value_or_throw(parse_bytes(text)); }, "text"_a);
}

}  // namespace larder::python
