#include "tests/campaign/seeds/training.h"

#include <algorithm>

#include "cache/protocol/record.h"
#include "loader/loader_state.h"

namespace larder::campaign {

using protocol::BlockStatus;
using protocol::Completion;

Training::Training(const Surroundings& around, Program& program, std::vector<int> nodes, std::function<void(int)> ended)
    : around_(around),
      program_(program),
      ended_(std::move(ended)),
      layout_(static_cast<std::uint32_t>(around.datasets[program.dataset]->editions().front()->size())) {
    if (program_.runs_now++ > 0) fail("runs twice at the same time");
    program_.progressed_ns = around_.events.now_ns();
    slot_pages_ = static_cast<std::uint32_t>(
        protocol::record_bytes(around_.datasets[program_.dataset]->bytes_max(), protocol::kPageBytes) /
        protocol::kPageBytes);
    for (const int node : nodes) ranks_.push_back({.node = around_.nodes[static_cast<std::size_t>(node)].get()});
    around_.events.trace(20, [&] {
        return "job " + program_.name + " runs with " + std::to_string(ranks_.size()) + " ranks, epoch " +
               std::to_string(program_.epochs_done) + " of " + std::to_string(program_.epochs);
    });
    if (!program_.state.empty() && resume()) {
        deal();
    } else {
        begin_epoch();
    }
    for (Rank& rank : ranks_) attach(rank);
    after(kWatch_ns, [this] { watch(); });
    try_step();
}

Training::~Training() {
    --program_.runs_now;
    for (Rank& rank : ranks_) lose_session(rank);
}

bool Training::runs_on(int node) const {
    return std::ranges::any_of(ranks_, [&](const Rank& rank) { return rank.node->number() == node; });
}

bool Training::resume() {
    const auto saved = detail::decode_state(program_.state);
    if (!saved) {
        fail("its saved state cannot be read: " + saved.error().message);
        return false;
    }
    edition_ = program_.edition;
    const bool has_all = std::ranges::all_of(
        ranks_, [&](const Rank& rank) { return rank.node->has_edition(program_.dataset, edition_); });
    epoch_ = saved->epoch;
    if (!has_all) return false;
    history_ = saved->history;
    seen_ = program_.seen;
    return true;
}

void Training::begin_epoch() {
    ++epoch_;
    edition_ = SIZE_MAX;
    for (const Rank& rank : ranks_) edition_ = std::min(edition_, rank.node->newest_edition(program_.dataset));
    for (const Rank& rank : ranks_) {
        if (!rank.node->has_edition(program_.dataset, edition_)) edition_ = 0;
    }
    history_.clear();
    seen_.assign(layout_.sample_count(), false);
    edition_is_gone_ = false;
    deal();
}

void Training::deal() {
    const detail::DealOptions options{.world_size = static_cast<std::uint32_t>(ranks_.size()),
                                      .batch_size = program_.batch};
    dealer_ = std::make_unique<detail::Dealer>(layout_.sample_count(), history_, options);
    step_ = 0;
    steps_ = 0;
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
        Rank& rank = ranks_[r];
        rank.order = std::make_unique<detail::EpochOrder>(
            layout_, detail::OrderOptions{.seed = program_.seed, .epoch = epoch_, .window_blocks = program_.window});
        rank.batches = dealer_->rank_batches(r);
        rank.next_batch = 0;
        rank.ahead.clear();
        steps_ = std::max(steps_, rank.batches);
    }
}

// --- sessions

void Training::attach(Rank& rank) {
    if (rank.client != nullptr || over_) return;
    const std::uint32_t slots = static_cast<std::uint32_t>(kAhead) * program_.batch;
    rank.client = rank.node->attach(program_.name, program_.uid, program_.dataset, edition_, slots * slot_pages_,
                                    [this, &rank] { take_completions(rank); });
    if (rank.client == nullptr) return after(kRetry_ns, [this, &rank] { attach(rank); });
    rank.instance = rank.node->instances();
    rank.free_slots.clear();
    for (std::uint32_t slot = 0; slot < slots; ++slot) rank.free_slots.push_back(slot);
    rank.busy_ns = rank.stall_ns = rank.bytes = rank.samples = 0;
    publish(rank);
    // Whatever was fetched over the last session is fetched again, except for a step that already computes.
    rank.ahead.clear();
    rank.next_batch = step_ + (computing_ ? 1 : 0);
    fetch_ahead(rank);
}

void Training::lose_session(Rank& rank) {
    if (rank.client == nullptr) return;
    if (rank.instance == rank.node->instances()) rank.node->detach(rank.client->session_id());
    rank.client.reset();
}

void Training::watch() {
    after(kWatch_ns, [this] { watch(); });
    for (Rank& rank : ranks_) {
        if (rank.client == nullptr) continue;
        const bool gone = rank.instance != rank.node->instances() || !rank.node->up() || rank.client->hung_up();
        if (!gone) continue;
        lose_session(rank);
        rank.ahead.clear();
        attach(rank);
    }
    if (edition_is_gone_ && !computing_) try_step();
}

// --- fetching

void Training::fetch_ahead(Rank& rank) {
    const auto r =
        static_cast<std::uint32_t>(std::ranges::find(ranks_, &rank, [](Rank& one) { return &one; }) - ranks_.begin());
    while (rank.client != nullptr && rank.next_batch < std::min(rank.batches, step_ + kAhead)) {
        const detail::PositionRun run = dealer_->batch(r, rank.next_batch);
        if (run.count > rank.free_slots.size()) return;
        Batch& batch = rank.ahead.emplace_back();
        batch.index = rank.next_batch++;
        for (std::uint64_t i = 0; i < run.count; ++i) {
            Item item;
            item.sample = static_cast<std::uint32_t>(rank.order->at(dealer_->position(run.begin + i)).sample);
            item.slot = rank.free_slots.back();
            rank.free_slots.pop_back();
            batch.items.push_back(item);
        }
        for (Item& item : batch.items) ask(rank, item);
    }
}

void Training::ask(Rank& rank, Item& item) {
    item.asked = true;
    rank.client->fetch(item.sample, item.slot * slot_pages_, item.slot, static_cast<std::uint32_t>(epoch_));
}

void Training::take_completions(Rank& rank) {
    if (rank.client == nullptr) return;
    bool any = false;
    while (rank.client != nullptr) {
        const auto completion = rank.client->next_completion();
        if (!completion) break;
        take_completion(rank, *completion);
        any = true;
    }
    if (rank.client != nullptr) rank.client->unmap_dropped();
    if (any) try_step();
}

void Training::take_completion(Rank& rank, const Completion& completion) {
    Item* item = nullptr;
    for (Batch& batch : rank.ahead) {
        for (Item& one : batch.items) {
            if (one.asked && !one.ready && one.slot == completion.tag) item = &one;
        }
    }
    if (item == nullptr) return fail("a completion that nobody waits for");
    const SimulatedObject& object = edition()[item->sample];
    if (completion.status == BlockStatus::ok) {
        const auto bytes = rank.client->payload(completion);
        if (bytes.size() != object.bytes || !has_content(bytes, object.seed)) {
            return fail("sample " + std::to_string(item->sample) + " has wrong bytes, from source " +
                        std::to_string(static_cast<int>(completion.source)) + " of " + rank.node->name());
        }
        ++around_.reads[static_cast<std::size_t>(completion.source)];
        item->ready = true;
        if (completion.segment == 0) item->in_slot = completion;
        return;
    }
    item->asked = false;
    if (completion.status == BlockStatus::object_changed || completion.status == BlockStatus::object_missing ||
        completion.status == BlockStatus::object_truncated) {
        // The right answer only if this object is no longer at the remote.
        const SimulatedObject* now = around_.datasets[program_.dataset]->find(object.path);
        if (now != nullptr && now->seed == object.seed) return fail("an object that did not change counts as changed");
        edition_is_gone_ = true;
    }
    around_.events.trace(21, [&] {
        return "job " + program_.name + " cannot read sample " + std::to_string(item->sample) + ": status " +
               std::to_string(static_cast<int>(completion.status));
    });
    after(kRetry_ns, [this, &rank, session = rank.client->session_id(), slot = item->slot] {
        if (rank.client == nullptr || rank.client->session_id() != session || edition_is_gone_) return;
        for (Batch& batch : rank.ahead) {
            for (Item& one : batch.items) {
                if (!one.asked && one.slot == slot) ask(rank, one);
            }
        }
    });
}

// --- steps

void Training::publish(Rank& rank) {
    if (rank.client == nullptr) return;
    protocol::RingControl& control = rank.client->control();
    control.training_loops.store(1, std::memory_order_relaxed);
    control.busy_ns.store(rank.busy_ns, std::memory_order_relaxed);
    control.stall_ns.store(rank.stall_ns, std::memory_order_relaxed);
    control.bytes_delivered.store(rank.bytes, std::memory_order_relaxed);
    control.samples_delivered.store(rank.samples, std::memory_order_relaxed);
    control.waiting_since_ns.store(rank.waits_since_ns == 0 ? 0 : rank.node->now_ns(), std::memory_order_relaxed);
}

void Training::try_step() {
    if (computing_ || over_) return;
    if (edition_is_gone_) {
        // The remote has a newer edition; begin again when all nodes have indexed it.
        const std::size_t newest = around_.datasets[program_.dataset]->editions().size() - 1;
        const bool has_all = std::ranges::all_of(
            ranks_, [&](const Rank& rank) { return rank.node->has_edition(program_.dataset, newest); });
        if (!has_all) return;
        for (Rank& rank : ranks_) lose_session(rank);
        begin_epoch();
        for (Rank& rank : ranks_) attach(rank);
    }
    bool ready = true;
    for (Rank& rank : ranks_) {
        if (step_ >= rank.batches) continue;
        const bool has_batch = rank.client != nullptr && !rank.ahead.empty() && rank.ahead.front().index == step_ &&
                               std::ranges::all_of(rank.ahead.front().items, &Item::ready);
        if (!has_batch && rank.waits_since_ns == 0) {
            rank.waits_since_ns = std::max<std::int64_t>(around_.events.now_ns(), 1);
            publish(rank);
        }
        ready = ready && has_batch;
    }
    if (!ready) return;
    computing_ = true;
    for (Rank& rank : ranks_) {
        if (rank.waits_since_ns == 0) continue;
        rank.stall_ns += static_cast<std::uint64_t>(around_.events.now_ns() - rank.waits_since_ns);
        rank.waits_since_ns = 0;
        publish(rank);
    }
    after(std::max<std::int64_t>(program_.step_ns, 1), [this] { finish_step(); });
}

void Training::finish_step() {
    computing_ = false;
    program_.progressed_ns = around_.events.now_ns();
    ++program_.steps;
    for (Rank& rank : ranks_) {
        if (step_ >= rank.batches) continue;
        const auto r = static_cast<std::uint32_t>(std::ranges::find(ranks_, &rank, [](Rank& one) { return &one; }) -
                                                  ranks_.begin());
        rank.busy_ns += static_cast<std::uint64_t>(program_.step_ns);
        // If the session was lost meanwhile, the batch was fetched before all the same.
        const detail::PositionRun run = dealer_->batch(r, step_);
        for (std::uint64_t i = 0; i < run.count; ++i) {
            const auto sample = rank.order->at(dealer_->position(run.begin + i)).sample;
            if (seen_[sample]) return fail("sample " + std::to_string(sample) + " comes twice in an epoch");
            seen_[sample] = true;
            rank.bytes += edition()[sample].bytes;
            ++rank.samples;
        }
        if (rank.client == nullptr || rank.ahead.empty() || rank.ahead.front().index != step_) continue;
        for (const Item& item : rank.ahead.front().items) {
            rank.free_slots.push_back(item.slot);
            if (!item.in_slot) continue;
            const SimulatedObject& object = edition()[item.sample];
            if (!has_content(rank.client->payload(*item.in_slot), object.seed))
                return fail("the bytes of sample " + std::to_string(item.sample) + " changed while they were held");
            rank.client->release(item.slot * slot_pages_);
        }
        rank.ahead.pop_front();
        publish(rank);
    }
    around_.events.note(hash_name(program_.name) ^ step_ << 32 ^ epoch_);
    ++step_;
    if (program_.ends_soon) return end(0);
    if (step_ == steps_) {
        if (std::ranges::find(seen_, false) != seen_.end()) return fail("an epoch ended without all of its samples");
        around_.events.trace(
            22, [&] { return "job " + program_.name + " has done epoch " + std::to_string(program_.epochs_done); });
        if (++program_.epochs_done >= program_.epochs) return end(0);
        const std::size_t before = edition_;
        begin_epoch();
        save();
        if (edition_ != before) {
            for (Rank& rank : ranks_) lose_session(rank);
            for (Rank& rank : ranks_) attach(rank);
        }
    } else if (around_.random.below(8) == 0) {
        save();
    }
    for (Rank& rank : ranks_) fetch_ahead(rank);
    try_step();
}

void Training::save() {
    const detail::LoaderState state{.seed = program_.seed,
                                    .epoch = epoch_,
                                    .content_hash = program_.dataset,
                                    .manifest_version = edition_ + 1,
                                    .sample_count = layout_.sample_count(),
                                    .window_blocks = program_.window,
                                    .history = step_ == 0 ? history_ : dealer_->history_after(step_)};
    program_.state = detail::encode(state);
    program_.seen = seen_;
    program_.edition = edition_;
}

void Training::end(int exit_code) {
    if (std::exchange(over_, true)) return;
    if (exit_code == 0) program_.done = true;
    around_.events.trace(23, [&] { return "job " + program_.name + " ends with " + std::to_string(exit_code); });
    // The owner destroys this object later, not from here.
    after(0, [this, exit_code] { ended_(exit_code); });
}

}  // namespace larder::campaign
