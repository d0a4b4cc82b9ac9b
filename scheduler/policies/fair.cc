#include "scheduler/policies/fair.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "scheduler/policies/packing.h"
#include "scheduler/policies/similar_rows.h"

namespace larder::scheduler {
namespace {

constexpr std::uint32_t kNoKind = std::numeric_limits<std::uint32_t>::max();

}  // namespace

// A row of numbers for each job: GPUs, terms, rates.
struct Fair::Candidates {
    std::vector<double> gpus_by_type;
    std::size_t terms = 0;  // of each row
    std::size_t width = 0;
    std::vector<double> rows;
    std::vector<std::uint32_t> jobs;  // by row, the index in the snapshot

    std::span<const double> row(std::size_t i) const { return std::span(rows).subspan(i * width, width); }

    // Returns the kind of each row.
    std::vector<std::size_t> group(Kinds& kinds) const {
        std::vector<std::size_t> order(jobs.size());
        std::iota(order.begin(), order.end(), 0);
        std::ranges::sort(
            order, [&](std::size_t a, std::size_t b) { return std::ranges::lexicographical_compare(row(a), row(b)); });
        std::vector<std::size_t> kind_of(jobs.size());
        kinds = {.gpus_by_type = gpus_by_type, .kinds = {}};
        for (std::size_t place = 0; place < order.size(); ++place) {
            const std::span<const double> current = row(order[place]);
            if (place == 0 || !std::ranges::equal(current, row(order[place - 1]))) {
                const auto rates = current.begin() + 1 + static_cast<std::ptrdiff_t>(terms);
                kinds.kinds.push_back(
                    {.gpus = current[0], .rates = {rates, current.end()}, .terms = {current.begin() + 1, rates}});
            }
            kind_of[order[place]] = kinds.kinds.size() - 1;
            ++kinds.kinds.back().jobs;
        }
        return kind_of;
    }
};

Fair::Candidates Fair::gather(const Fair& policy, const Snapshot& snapshot) {
    const std::size_t types = snapshot.gpu_types.size();
    Candidates found;
    found.terms = policy.terms(snapshot);
    found.width = 1 + types + found.terms;
    for (const GpuTypeState& type : snapshot.gpu_types) found.gpus_by_type.push_back(type.gpus);
    for (const JobState* const job : snapshot.jobs) {
        if (is_unstoppable(*job)) found.gpus_by_type[job->gpu_type] -= job->gpus;
    }
    for (double& gpus : found.gpus_by_type) gpus = std::max(0.0, gpus);
    std::vector<double> rates(types), terms(found.terms);
    const Packing packing(snapshot);
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        if (is_unstoppable(job)) continue;
        const std::uint32_t gpus = job.running ? job.gpus : gpus_asked(snapshot, *job.spec);
        double best = 0;
        for (std::uint32_t type = 0; type < types; ++type) {
            const bool may_run =
                (job.spec->gpu_type == kAnyGpuType || job.spec->gpu_type == type) && found.gpus_by_type[type] >= gpus;
            rates[type] = may_run ? packing.rate_alone(job, type, gpus) : 0;
            best = std::max(best, rates[type]);
        }
        if (best <= 0) continue;
        std::ranges::fill(terms, 0);
        policy.set_terms(snapshot, job, gpus, rates, terms);
        found.jobs.push_back(j);
        found.rows.push_back(gpus);
        found.rows.insert(found.rows.end(), terms.begin(), terms.end());
        found.rows.insert(found.rows.end(), rates.begin(), rates.end());
    }
    return found;
}

bool Fair::types_are_one(const Kinds& kinds) {
    return std::ranges::all_of(kinds.kinds, [&](const Kind& kind) {
        double rate = -1;
        for (std::size_t type = 0; type < kind.rates.size(); ++type) {
            if (kinds.gpus_by_type[type] <= 0) continue;
            if (rate >= 0 && kind.rates[type] != rate) return false;
            rate = kind.rates[type];
        }
        return true;
    });
}

Shares Fair::spread_over_types(const Kinds& kinds, std::span<const double> parts) {
    Shares shares;
    shares.types = static_cast<std::uint32_t>(kinds.gpus_by_type.size());
    const double all = std::accumulate(kinds.gpus_by_type.begin(), kinds.gpus_by_type.end(), 0.0);
    shares.parts.reserve(parts.size() * shares.types);
    for (const double part : parts) {
        for (const double gpus : kinds.gpus_by_type) shares.parts.push_back(part * gpus / all);
    }
    return shares;
}

Result<Shares> Fair::shares_at_highest_level(const Kinds& kinds, std::span<const double> needs,
                                             std::span<const double> floors, bool spreads_rest,
                                             std::vector<SharePair> pairs) {
    const bool is_one_type = pairs.empty() && types_are_one(kinds);
    ShareProblem problem;
    problem.pairs = std::move(pairs);
    if (is_one_type) {
        problem.gpus_by_type = {std::accumulate(kinds.gpus_by_type.begin(), kinds.gpus_by_type.end(), 0.0)};
    } else {
        problem.gpus_by_type = kinds.gpus_by_type;
    }
    problem.groups.reserve(kinds.kinds.size());
    for (std::size_t k = 0; k < kinds.kinds.size(); ++k) {
        const Kind& kind = kinds.kinds[k];
        ShareGroup& group = problem.groups.emplace_back();
        group.jobs = kind.jobs;
        group.gpus = kind.gpus;
        group.need = needs[k];
        group.floor = floors.empty() ? 0 : floors[k];
        if (is_one_type) {
            group.rates = {std::ranges::max(kind.rates)};
        } else {
            group.rates = kind.rates;
        }
    }
    last_pairs_ = problem.pairs;
    if (!is_one_type) return program_.solve(problem, spreads_rest);
    const Shares closed = closed_form_shares(problem);
    Shares shares = spread_over_types(kinds, closed.parts);
    shares.level = closed.level;
    return shares;
}

Result<std::vector<std::uint32_t>> Fair::share_out(const Snapshot& snapshot) {
    prepare(snapshot);
    Candidates candidates = gather(*this, snapshot);
    Kinds kinds;
    std::vector<std::size_t> kind_of_row = candidates.group(kinds);
    if (kinds.kinds.size() > kinds_max_) {
        merge_similar_rows(candidates.rows, candidates.width, 1 + exact_terms(), kinds_max_);
        kind_of_row = candidates.group(kinds);
    }
    if (kinds != last_kinds_ && !kinds.kinds.empty()) {
        auto shares = allocate(snapshot, kinds);
        if (!shares) return std::unexpected(shares.error());
        last_shares_ = std::move(*shares);
        last_kinds_ = std::move(kinds);
    }
    std::vector<std::uint32_t> kind_of(snapshot.jobs.size(), kNoKind);
    for (std::size_t i = 0; i < candidates.jobs.size(); ++i) {
        kind_of[candidates.jobs[i]] = static_cast<std::uint32_t>(kind_of_row[i]);
    }
    return kind_of;
}

std::vector<double> Fair::parts_of(const Snapshot& snapshot, std::span<const std::uint32_t> kind_of) const {
    const std::size_t types = snapshot.gpu_types.size();
    std::vector<double> by_kind = last_shares_.parts;
    for (std::size_t i = 0; i < last_shares_.pair_gpus.size(); ++i) {
        const SharePair& pair = last_pairs_[i];
        for (const std::uint32_t kind : {pair.first, pair.second}) {
            by_kind[kind * types + pair.type] += last_shares_.pair_gpus[i] / last_kinds_.kinds[kind].jobs;
        }
    }
    std::vector<double> parts(snapshot.jobs.size() * types);
    for (std::size_t j = 0; j < kind_of.size(); ++j) {
        if (kind_of[j] == kNoKind) continue;
        for (std::size_t type = 0; type < types; ++type) {
            parts[j * types + type] = std::min(1.0, by_kind[kind_of[j] * types + type]);
        }
    }
    return parts;
}

Result<std::vector<double>> Fair::parts(const Snapshot& snapshot) {
    const auto kind_of = share_out(snapshot);
    if (!kind_of) return std::unexpected(kind_of.error());
    return parts_of(snapshot, *kind_of);
}

Result<Decision> Fair::decide(const Snapshot& snapshot) {
    const auto kind_of = share_out(snapshot);
    if (!kind_of) return std::unexpected(kind_of.error());
    const std::vector<double> all_parts = parts_of(snapshot, *kind_of);
    const std::size_t types = snapshot.gpu_types.size();
    std::vector<RoundJob> jobs;
    jobs.reserve(snapshot.jobs.size());
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        if (is_unstoppable(job)) continue;
        jobs.push_back({.job = j,
                        .gpus = job.running ? job.gpus : gpus_asked(snapshot, *job.spec),
                        .parts = std::span(all_parts).subspan(j * types, types)});
    }
    Decision decision;
    want_round(snapshot, jobs, round_s_, decision,
               {.shares = &last_shares_, .pairs = last_pairs_, .kind_of = *kind_of});
    return decision;
}

}  // namespace larder::scheduler
