#pragma once

// Larder's client: reads a dataset through this node's daemon.
//
//     larder::LoaderOptions options{.dataset = "imagenet", .job = "resnet50", .batch_size = 256};
//     auto loader = larder::Loader::open(options);
//     if (!loader) return report(loader.error().message);
//     for (auto batch = loader->next(); batch && *batch; batch = loader->next())
//         for (const larder::Sample& sample : (*batch)->samples()) use(sample.bytes());
//
// A Loader walks epochs: every sample of the dataset is delivered exactly once per epoch to the whole job, in an order
// that is a pure function of (seed, epoch, manifest). Samples are spans into memory the daemon shares read-only; they
// are valid until their Batch is destroyed. The loader prefetches into a memory budget that held batches share. A
// budget of (held + prefetched + 1) times the largest batch, plus the shuffle window, is always enough. A loop that
// holds one batch until it has the next works with any budget that `open` accepts. `next` fails with
// ErrorCode::no_space only if several held batches leave no room for the batch that is due.
//
// A Dataset reads any samples by index, for map-style use.
//
// Threads: a Loader, a Dataset and their batches belong to one thread at a time. Fork: open after fork; an object
// inherited across a fork opens its own session on first use in the child. Errors: values; after an error `next` may be
// called again (a changed object is skipped only on request, see LoaderOptions::skip_failed). `open` waits up to
// `reconnect_timeout_ms` for a daemon that is away. If the daemon restarts later, the loader reconnects and continues,
// with nothing lost or repeated. It fails with ErrorCode::unavailable only if the daemon stays away for the same time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/protocol/element_type.h"
#include "cache/protocol/take_log.h"

namespace larder {

// One field of a sample. Its name depends on the format. Raw: the file's suffix. WebDataset: the member's suffix
// ("jpg", "cls"). MDS: the column. LitData: the leaf, by its path in the sample ("image", "meta.width", "0"). TFRecord:
// "record". Megatron: "tokens".
struct Field {
    std::string_view name;
    std::span<const std::byte> bytes;
    std::string_view encoding{};              // as the format spells it ("int", "ndarray:int32:3"); empty: bytes
    ElementType element = ElementType::none;  // set if the field is an array of numbers
};

// The place of a row, valid while its batch lives. Arrow decodes `block_bytes`. Parquet: these are row groups, and
// protocol::parquet_footer_file makes their footer of `head` and `details`. LitData: these are Arrow's messages with
// batches of rows, `details` is the message with their schema, and `head` is empty.
struct RowPlace {
    std::uint64_t dataset_id = 0;
    std::uint64_t version = 0;    // of the dataset
    std::uint32_t block = 0;      // in the manifest
    std::uint32_t row = 0;        // in the block
    std::uint32_t row_count = 0;  // of the block
    std::span<const std::byte> block_bytes;
    std::span<const std::byte> details;
    std::span<const std::byte> head;
    std::span<const std::string_view> columns;  // those that the dataset has, as far as its index names them
};

// One sample, valid while its batch lives.
struct Sample {
    std::uint64_t index = 0;  // in the manifest
    std::string_view key;     // WebDataset: the members' common key; else the path of its file
    std::uint32_t label = 0;  // class index, or kNoLabel
    std::span<const Field> fields;
    std::string_view structure{};   // LitData: the tree whose leaves are the fields, as in LitData's index.json
    const RowPlace* row = nullptr;  // of Parquet, and of LitData's rows: such a sample has no fields
    std::span<const std::byte> bytes() const {
        return fields.empty() ? std::span<const std::byte>{} : fields.front().bytes;
    }
};
inline constexpr std::uint32_t kNoLabel = 0xffffffff;

struct ConnectOptions {
    std::string dataset;
    // Sessions of one job share its rate limit and its count of unread bytes. Empty: $LARDER_JOB, which schedulers set,
    // else "default".
    std::string job;
    std::string socket;  // empty: $LARDER_SOCKET, else the user's `larder up`, else the service
    // For blocks in flight and in batches. 0: twice what two batches and the shuffle window need, 256 MiB to 1 GiB.
    std::uint64_t memory_budget_bytes = 0;
    std::int64_t reconnect_timeout_ms = 30'000;  // how long `open`, and an open loader, wait for a daemon
    // Called some ten times a second while a call waits; true makes the call return ErrorCode::cancelled.
    bool (*interrupted)() = nullptr;
    // Called with the reason, once each time a call begins to wait for a daemon that is away.
    void (*daemon_away)(const std::string& why) = nullptr;
};

// The rule that deals the global order to ranks. `interleaved`: rank r takes the r-th run of batch_size samples of each
// global batch; any prefix of the epoch is the same set of samples on any number of ranks. `contiguous`: each rank
// takes one stretch of the order, so a block of many samples is read by one rank only. `automatic`: interleaved when
// blocks hold one sample, contiguous otherwise.
enum class Deal : std::uint8_t { automatic, interleaved, contiguous };

// How a job goes through an epoch. `seeded`: in an order that is a function of (seed, epoch, manifest). `shared`: the
// daemon chooses the next block, so that jobs that read one dataset at a time on one node share each fetch; the order
// is another each time. Either way, each sample is delivered exactly once per epoch.
enum class Order : std::uint8_t { seeded, shared };

struct LoaderOptions : ConnectOptions {
    std::uint64_t seed = 0;
    bool shuffle = true;
    std::uint32_t shuffle_window_blocks = 16;  // samples mix within this many blocks; blocks mix globally
    std::uint32_t batch_size = 1;
    std::uint32_t rank = 0;
    std::uint32_t world_size = 1;
    std::uint32_t worker = 0;  // this process's place among the rank's loading processes
    std::uint32_t worker_count = 1;
    bool drop_last = false;  // only whole batches, the same number for every rank
    // Leaves out samples whose object changed or failed, and counts them. Batches get shorter, down to empty, and keep
    // their places.
    bool skip_failed = false;
    Deal deal = Deal::automatic;  // `shared` deals contiguously
    Order order = Order::seeded;
    std::uint64_t first_epoch = 0;
    // For a process that collects batches loaded by other processes: it needs epochs, lengths and states, but no
    // samples. The loader then keeps no session and no memory, and `next` fails.
    bool plan_only = false;
};

// Counts of what was delivered. A block counts once per epoch, and not if it was only prefetched.
struct LoaderStatistics {
    std::uint64_t samples = 0;
    std::uint64_t bytes = 0;
    std::uint64_t memory_blocks = 0;  // from the daemon's memory, or from a batch that this process still holds
    std::uint64_t peer_blocks = 0;    // from other nodes' caches
    std::uint64_t disk_blocks = 0;
    std::uint64_t remote_blocks = 0;
    std::uint64_t remote_bytes = 0;
    std::uint64_t skipped_samples = 0;
    std::uint64_t reconnects = 0;
    std::int64_t stall_ns = 0;  // time `next` waited for data
};

// For a process that makes batches for a training loop in another process (a DataLoader worker): how long that loop
// waits for batches. The daemon is told these waits instead of this process's own. The object lies in memory that the
// two processes share; the loop writes, loaders read. Times are CLOCK_MONOTONIC's.
struct TrainingLoopWait {
    std::atomic<std::int64_t> waited_ns{0};         // in finished waits
    std::atomic<std::int64_t> waiting_since_ns{0};  // 0: not waiting
};

// The same, with the times of the waits. The daemon needs them to measure f* of ranks that wait for each other.
struct TrainingLoop {
    TrainingLoopWait wait;
    protocol::TakeLog takes{};  // one for each finished wait

    // The loop calls these around each wait for a batch, however short.
    void begin_wait(std::int64_t now_ns) { wait.waiting_since_ns.store(now_ns, std::memory_order_release); }
    // `waited_ns`: in all waits, this one included. A reader in between counts too much waiting, never too little.
    void end_wait(std::int64_t waited_ns) {
        const std::int64_t since_ns = wait.waiting_since_ns.load(std::memory_order_relaxed);
        const std::int64_t before_ns = wait.waited_ns.load(std::memory_order_relaxed);
        if (since_ns != 0) takes.add(since_ns, since_ns + waited_ns - before_ns);
        wait.waited_ns.store(waited_ns, std::memory_order_release);
        wait.waiting_since_ns.store(0, std::memory_order_release);
    }
};

namespace detail {
struct BatchState;
class LoaderCore;
class DatasetCore;
}  // namespace detail

class Batch {
public:
    Batch(Batch&&) noexcept;
    Batch& operator=(Batch&&) noexcept;
    ~Batch();  // returns the samples' memory to the loader

    std::span<const Sample> samples() const;
    std::size_t size() const { return samples().size(); }
    const Sample& operator[](std::size_t i) const { return samples()[i]; }

private:
    friend struct detail::BatchState;
    explicit Batch(std::shared_ptr<detail::BatchState> state);
    std::shared_ptr<detail::BatchState> state_;
};

class Loader {
public:
    static Result<Loader> open(LoaderOptions options);
    Loader(Loader&&) noexcept;
    Loader& operator=(Loader&&) noexcept;
    ~Loader();

    // The next batch of this rank (and worker) in the current epoch; nullopt once at the end of the epoch, after which
    // the next epoch begins. If a loop is left in mid-epoch, the next call continues there. To begin the next epoch
    // instead, call start_epoch(epoch() + 1).
    Result<std::optional<Batch>> next();

    std::uint64_t epoch() const;
    // The batches of this rank, over all its workers, from where this loader began in the epoch (its start, or the
    // restored state) to the epoch's end.
    std::uint64_t batches_per_epoch() const;
    std::uint64_t sample_count() const;
    std::vector<std::string> class_names() const;

    // The position of the whole job, in a few bytes, when every rank has taken as many batches as this one. It can be
    // restored on any number of ranks and workers (same dataset version, seed, shuffle and window; a mismatch is an
    // error). With the order `shared` it has what this loader delivered itself, in a bit or less for each block:
    // `merge_states` makes the job's state of those of all its ranks and workers.
    std::vector<std::byte> state() const;
    // The state after this rank has taken `rank_batches` batches over all its workers, from where this loader began in
    // the epoch. For a main process that collects batches from workers; with the order `shared`, at most as many
    // batches as were taken.
    std::vector<std::byte> state_after(std::uint64_t rank_batches) const;
    Result<void> restore(std::span<const std::byte> state);
    // Returns the state of a job that reads in shared order, from the states of all its ranks and workers after the
    // same step.
    static Result<std::vector<std::byte>> merge_states(std::span<const std::vector<std::byte>> states);
    // Goes to the start of an epoch.
    Result<void> start_epoch(std::uint64_t epoch);

    // Tells the loader that its batches go to a training loop in another process. Give the loop's
    // waits to one of its loaders and null to the others, or null to all if the waits are unknown. `takes`: see
    // TrainingLoop; null: unknown.
    void set_training_loop(std::shared_ptr<const TrainingLoopWait> loop,
                           std::shared_ptr<const protocol::TakeLog> takes = nullptr);

    LoaderStatistics statistics() const;

private:
    explicit Loader(std::unique_ptr<detail::LoaderCore> core);
    std::unique_ptr<detail::LoaderCore> core_;
};

class Dataset {
public:
    static Result<Dataset> open(ConnectOptions options);
    Dataset(Dataset&&) noexcept;
    Dataset& operator=(Dataset&&) noexcept;
    ~Dataset();

    std::uint64_t sample_count() const;
    std::uint64_t total_bytes() const;
    std::vector<std::string> class_names() const;
    // The named samples, in the order given; waits until all are here.
    Result<Batch> fetch(std::span<const std::uint64_t> indices);
    // See Loader.
    void set_training_loop(std::shared_ptr<const TrainingLoopWait> loop,
                           std::shared_ptr<const protocol::TakeLog> takes = nullptr);
    LoaderStatistics statistics() const;

private:
    explicit Dataset(std::unique_ptr<detail::DatasetCore> core);
    std::unique_ptr<detail::DatasetCore> core_;
};

}  // namespace larder
