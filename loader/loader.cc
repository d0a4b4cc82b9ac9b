#include <string>

#include "base/machine_memory.h"
#include "base/units.h"
#include "loader/dataset_core.h"
#include "loader/larder.h"
#include "loader/loader_core.h"

namespace larder {
namespace {

std::vector<std::string> names_of_classes(const protocol::Manifest& manifest) {
    std::vector<std::string> names;
    names.reserve(manifest.header().class_count);
    for (std::uint64_t i = 0; i < manifest.header().class_count; ++i) names.emplace_back(manifest.class_name(i));
    return names;
}

Result<void> check_budget(const ConnectOptions& options) {
    const MachineMemory machine = machine_memory();
    if (options.memory_budget_bytes <= machine.bytes) return {};
    return fail(ErrorCode::invalid_argument, "a memory budget of " + format_bytes(options.memory_budget_bytes) +
                                                 " is more than there is: " + describe(machine) +
                                                 "; give less, or none for the default");
}

}  // namespace

Loader::Loader(std::unique_ptr<detail::LoaderCore> core) : core_(std::move(core)) {}
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;
Loader::~Loader() = default;

Result<Loader> Loader::open(LoaderOptions options) {
    if (auto checked = check_budget(options); !checked) return std::unexpected(checked.error());
    auto core = detail::LoaderCore::open(std::move(options));
    if (!core) return std::unexpected(core.error());
    return Loader(std::move(*core));
}

Result<std::optional<Batch>> Loader::next() {
    return core_->next();
}
std::uint64_t Loader::epoch() const {
    return core_->epoch();
}
std::uint64_t Loader::batches_per_epoch() const {
    return core_->batches_per_epoch();
}
std::uint64_t Loader::sample_count() const {
    return core_->manifest().sample_count();
}
std::vector<std::string> Loader::class_names() const {
    return names_of_classes(core_->manifest());
}
std::vector<std::byte> Loader::state() const {
    return core_->state();
}
std::vector<std::byte> Loader::state_after(std::uint64_t rank_batches) const {
    return core_->state_after(rank_batches);
}
Result<void> Loader::restore(std::span<const std::byte> state) {
    return core_->restore(state);
}

Result<void> Loader::start_epoch(std::uint64_t epoch) {
    core_->start_epoch(epoch, {});
    return {};
}

void Loader::set_training_loop(std::shared_ptr<const TrainingLoopWait> loop) {
    core_->set_training_loop(std::move(loop));
}
LoaderStatistics Loader::statistics() const {
    return core_->statistics();
}

Dataset::Dataset(std::unique_ptr<detail::DatasetCore> core) : core_(std::move(core)) {}
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

Result<Dataset> Dataset::open(ConnectOptions options) {
    if (auto checked = check_budget(options); !checked) return std::unexpected(checked.error());
    auto core = detail::DatasetCore::open(std::move(options));
    if (!core) return std::unexpected(core.error());
    return Dataset(std::move(*core));
}

std::uint64_t Dataset::sample_count() const {
    return core_->manifest().sample_count();
}
std::uint64_t Dataset::total_bytes() const {
    return core_->manifest().total_bytes();
}
std::vector<std::string> Dataset::class_names() const {
    return names_of_classes(core_->manifest());
}
Result<Batch> Dataset::fetch(std::span<const std::uint64_t> indices) {
    return core_->fetch(indices);
}
void Dataset::set_training_loop(std::shared_ptr<const TrainingLoopWait> loop) {
    core_->set_training_loop(std::move(loop));
}
LoaderStatistics Dataset::statistics() const {
    return core_->statistics();
}

}  // namespace larder
