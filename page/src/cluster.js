// The allocator's page: the cluster, in the order in which operators look.

import { ask } from "./api.js";
import * as format from "./format.js";
import { html } from "./html.js";
import { act, Bar, job_link, Limit, ratio, Section, Tag } from "./parts.js";
import { changed, may_cancel, may_cancel_own, may_operate, may_predict, now_ms, store, update } from "./store.js";
import { Table } from "./table.js";

let made = { jobs: null, queue: null, rows: [] };

// Running jobs as plans see them, and submitted ones that wait for GPUs.
function job_rows({ jobs, queue }) {
    if (jobs !== made.jobs || queue !== made.queue) made = { jobs, queue, rows: make_job_rows(jobs, queue) };
    return made.rows;
}

function make_job_rows(jobs, queue) {
    const rows = jobs.map((job) => ({ ...job, limit: job.limited_by }));
    const known = new Set(jobs.filter((job) => job.running).map((job) => job.name));
    for (const job of queue) {
        if (job.state !== "waiting" || known.has(job.name)) continue;
        const limit = { resource: "gpus", since_unix_ms: job.submitted_unix_s * 1000 };
        rows.push({ name: job.name, dataset: job.dataset, running: false, limit });
    }
    return [...new Map(rows.map((row) => [row.name, row])).values()];
}

const job_columns = [
    { name: "Job", stable: true, value: (job) => job.name, cell: (job) => job_link(job.name), grow: true },
    { name: "Dataset", stable: true, wide: true, value: (job) => job.dataset, cell: (job) => job.dataset ?? "–" },
    {
        name: "f against f*",
        title: "the rate of the last seconds; the mark is the predicted rate",
        value: (job) => ratio(job.measured_bytes_per_second, job.ideal_bytes_per_second),
        cell: (job) =>
            job.running
                ? html`<${Bar}
                      used=${job.measured_bytes_per_second}
                      mark=${job.predicted_bytes_per_second}
                      all=${job.ideal_bytes_per_second}
                      tone=${ratio(job.predicted_bytes_per_second, job.ideal_bytes_per_second) < 0.98 ? "warn" : "good"}
                      label=${`${format.rate(job.measured_bytes_per_second)} measured, ${format.rate(job.predicted_bytes_per_second)} predicted, f* ${format.rate(job.ideal_bytes_per_second)}`}
                  />`
                : "–",
    },
    { name: "f", numeric: true, value: (job) => job.measured_bytes_per_second, cell: (job) => format.rate(job.measured_bytes_per_second) },
    { name: "f*", numeric: true, wide: true, value: (job) => job.ideal_bytes_per_second, cell: (job) => format.rate(job.ideal_bytes_per_second) },
    {
        name: "Limited by, since",
        value: (job) => job.limit?.resource,
        cell: (job) => html`<${Limit} limit=${job.limit} />`,
    },
    { name: "Hits", title: "of the rest of the epoch", numeric: true, wide: true, value: (job) => job.hit_ratio, cell: (job) => format.percent(job.hit_ratio) },
    { name: "Granted", title: "remote bandwidth", numeric: true, wide: true, value: (job) => job.bandwidth_bytes_per_second, cell: (job) => format.rate(job.bandwidth_bytes_per_second) },
    { name: "Used", title: "remote bandwidth", numeric: true, wide: true, value: (job) => job.measured_remote_bytes_per_second, cell: (job) => format.rate(job.measured_remote_bytes_per_second) },
    { name: "Stall", title: "the part of its time that it waited for data", numeric: true, wide: true, value: (job) => job.stall_ratio, cell: (job) => format.percent(job.stall_ratio) },
];

function Jobs({ state }) {
    const rows = job_rows(state);
    const running = state.jobs.filter((job) => job.running);
    const slow = running.filter((job) => job.limited_by && !["compute", "unknown"].includes(job.limited_by.resource));
    return html`<${Section} id="jobs" title="Jobs" note=${`${running.length} running, ${slow.length} of them below f*`}>
        <${Table} label="Jobs" rows=${rows} row_key=${(job) => job.name} columns=${job_columns}
            search=${(job) => `${job.name} ${job.dataset ?? ""}`} empty="No job runs." />
    </>`;
}

// --- the queue

const WHY_MS = 5000;
const WHYS_MAX = 500;

export async function learn_why(job) {
    const { whys } = store.state;
    const known = whys.get(job.id);
    if (known && Date.now() - known.asked_ms < WHY_MS) return;
    const keep = (why) => {
        whys.delete(job.id); // so that the map is in the order of asking
        whys.set(job.id, { ...why, asked_ms: Date.now() });
        if (whys.size > WHYS_MAX) whys.delete(whys.keys().next().value);
    };
    keep(known);
    try {
        keep(await ask("GET", `/v1/queue/${job.id}/why`));
        changed();
    } catch {
        // It may have ended: the next list leaves it out.
    }
}

export const why_of = (job) => store.state.whys.get(job.id);

export const cancel = (job) =>
    act(`Cancel job ${job.id} (${job.name})? If it runs, it is stopped.`, ["DELETE", `/v1/queue/${job.id}`], `job ${job.name} is cancelled`);

const waiting_columns = () =>
    [
        { name: "Job", stable: true, value: (job) => job.name, cell: (job) => job_link(job.name) },
        { name: "Place", title: "among the jobs that wait, by priority and then by submission", numeric: true, value: (job) => why_of(job)?.place, cell: (job) => format.number(why_of(job)?.place) },
        { name: "GPUs", numeric: true, wide: true, value: (job) => job.gpus, cell: (job) => job.gpus },
        { name: "Tenant", wide: true, stable: true, value: (job) => job.tenant, cell: (job) => job.tenant },
        { name: "Waited", numeric: true, value: (job) => -job.submitted_unix_s, cell: (job) => format.duration(now_ms() / 1000 - job.submitted_unix_s) },
        {
            name: "May start",
            title: "when enough GPUs are free for it alone, as far as the ends of jobs are known",
            value: (job) => why_of(job)?.starts_unix_s,
            cell: (job) => {
                const at = why_of(job)?.starts_unix_s;
                if (at === undefined) return html`<span class="muted">not known</span>`;
                const left = at - now_ms() / 1000;
                return left < 2 ? "now" : html`in ${format.duration(left)} <small>${format.clock(at)}</small>`;
            },
        },
        { name: "Why", grow: true, cell: (job) => html`<span class="why" title=${why_of(job)?.why}>${why_of(job)?.why ?? "…"}</span>` },
        may_cancel_own() && {
            name: "",
            cell: (job) =>
                may_cancel(job) ? html`<button type="button" class="quiet" aria-label=${`Cancel ${job.name}`} onClick=${() => cancel(job)}>Cancel</button>` : null,
        },
    ].filter(Boolean);

function Waiting({ state }) {
    const waiting = state.queue.filter((job) => job.state === "waiting" || job.state === "placed");
    if (!state.runs_jobs) return null;
    return html`<${Section} id="waiting" title="Why is my job waiting?" note=${`${waiting.length} waiting, policy ${state.policy}`}>
        <${Table} label="Waiting jobs" rows=${waiting} row_key=${(job) => job.id} columns=${waiting_columns()}
            search=${(job) => `${job.name} ${job.tenant}`} empty="No job waits." on_window=${(rows) => rows.forEach(learn_why)} />
    </>`;
}

// --- datasets

function hit_ratio(dataset) {
    return dataset.size_bytes > 0 ? dataset.effective_bytes / dataset.size_bytes : 0;
}

const dataset_columns = () =>
    [
        { name: "Dataset", stable: true, value: (set) => set.name, cell: (set) => set.name, grow: true },
        {
            name: "c/d",
            title: "cached bytes over the dataset's; the mark is the quota",
            value: (set) => ratio(set.cached_bytes, set.size_bytes),
            cell: (set) => html`<${Bar} used=${set.cached_bytes} mark=${set.quota_bytes} all=${set.size_bytes} label=${`${format.percent(ratio(set.cached_bytes, set.size_bytes))} cached, quota ${format.bytes(set.quota_bytes)}`} />
                <small>${format.percent(ratio(set.cached_bytes, set.size_bytes))}</small>`,
        },
        { name: "Size", numeric: true, wide: true, value: (set) => set.size_bytes, cell: (set) => format.bytes(set.size_bytes) },
        { name: "Cached", numeric: true, wide: true, value: (set) => set.cached_bytes, cell: (set) => format.bytes(set.cached_bytes) },
        { name: "Hits", title: "of the rest of its jobs' epochs", numeric: true, value: hit_ratio, cell: (set) => (set.jobs.length ? format.percent(hit_ratio(set)) : "–") },
        { name: "In force", title: "the quotas that nodes report", numeric: true, value: (set) => set.applied_bytes, cell: (set) => format.bytes(set.applied_bytes) },
        { name: "Wished", title: "the quota of the plan", numeric: true, wide: true, value: (set) => set.quota_bytes, cell: (set) => format.bytes(set.quota_bytes) },
        { name: "Pinned", numeric: true, value: (set) => set.pinned_bytes, cell: (set) => (set.pinned_bytes === undefined ? "–" : format.bytes(set.pinned_bytes)) },
        { name: "Jobs", numeric: true, wide: true, value: (set) => set.jobs.length, cell: (set) => set.jobs.length },
        may_predict() && {
            name: "",
            cell: (set) => html`<button type="button" class="quiet" aria-label=${`What if ${set.name} had another quota`} onClick=${() => update({ whatif: { dataset: set.name } })}>What if…</button>`,
        },
    ].filter(Boolean);

function Datasets({ state }) {
    return html`<${Section} id="datasets" title="Datasets" note=${`${state.datasets.length} datasets`}>
        <${Table} label="Datasets" rows=${state.datasets} row_key=${(set) => set.name} columns=${dataset_columns()}
            search=${(set) => set.name} empty="No node has a dataset." />
    </>`;
}

// --- the remote

export function remote_of(state) {
    const sum = (value) => state.jobs.reduce((all, job) => all + (job.running ? (value(job) ?? 0) : 0), 0);
    return {
        limit: state.status.remote_bytes_per_second,
        granted: sum((job) => job.bandwidth_bytes_per_second),
        used: sum((job) => job.measured_remote_bytes_per_second),
    };
}

function Remote({ state }) {
    const { limit, granted, used } = remote_of(state);
    const line = (text, value, tone) => html`<div class="meter">
        <span>${text}</span>
        <${Bar} used=${value} all=${limit} tone=${tone} label=${`${text}: ${format.rate(value)} of ${format.rate(limit)}`} />
        <b>${format.rate(value)}</b><small>${format.percent(ratio(value, limit))}</small>
    </div>`;
    return html`<${Section} id="remote" title="Remote bandwidth" note=${`B is ${format.rate(limit)}`}>
        <div class="meters">${line("Granted", granted, "")} ${line("Used", used, used > 0.95 * limit ? "warn" : "good")}</div>
        ${may_predict() ? html`<p><button type="button" class="quiet" onClick=${() => update({ whatif: {} })}>What if B were different…</button></p>` : null}
    </>`;
}

// --- nodes

const tier = (key, name) => ({
    name,
    title: "used of the capacity; the mark is the quota",
    wide: true,
    value: (row) => ratio(row.used[key], row.capacity[key]),
    cell: (row) =>
        row.capacity[key] > 0
            ? html`<${Bar} used=${row.used[key]} mark=${row.quota[key]} all=${row.capacity[key]} label=${`${format.bytes(row.used[key])} used of ${format.bytes(row.capacity[key])}`} />
                  <small>${format.bytes(row.capacity[key])}</small>`
            : "–",
});

function faults_of(node, events) {
    const faults = [];
    if (!node.alive) faults.push(`silent for ${format.duration(node.heard_ms_ago / 1000)}`);
    if (node.alive && node.lease && node.lease.left_ms === 0) faults.push("its lease has expired");
    if (node.lease?.cut) faults.push("its lease is cut");
    const recent = events.findLast((event) => event.subject === node.name && ["report_refused", "lease_cut"].includes(event.kind));
    if (recent && now_ms() - recent.unix_ms < 60_000) faults.push(recent.message);
    return faults;
}

function node_columns(state) {
    return [
        { name: "Node", stable: true, value: (node) => node.name, cell: (node) => node.name, grow: true },
        { name: "State", value: (node) => String(node.alive), cell: (node) => (node.alive ? html`<${Tag} tone="good">reports</>` : html`<${Tag} tone="bad">gone</>`) },
        tier("memory_bytes", "Memory"),
        tier("disk_bytes", "Disk"),
        { name: "Peers", title: "the group of nodes that read each other's caches", wide: true, stable: true, value: (node) => node.peer_group, cell: (node) => node.peer_group ?? "alone" },
        { name: "GPUs", numeric: true, wide: true, value: (node) => node.gpus, cell: (node) => node.gpus },
        { name: "Jobs", numeric: true, value: (node) => node.jobs.length, cell: (node) => node.jobs.length },
        { name: "Granted", numeric: true, value: (node) => node.lease?.bytes_per_second, cell: (node) => (node.lease && node.lease.left_ms > 0 ? format.rate(node.lease.bytes_per_second) : html`<span class="muted">no lease</span>`) },
        {
            name: "Faults",
            descends: true,
            value: (node) => faults_of(node, state.events).length,
            cell: (node) => {
                const text = faults_of(node, state.events).join("; ");
                return text ? html`<span class="why fault" title=${text}>${text}</span>` : html`<span class="muted">none</span>`;
            },
        },
        may_operate() && {
            name: "",
            cell: (node) =>
                node.alive
                    ? null
                    : html`<button type="button" class="quiet" aria-label=${`Remove ${node.name}`} onClick=${() => act(`Remove node ${node.name}? Its daemon must have ended.`, ["DELETE", `/v1/nodes/${encodeURIComponent(node.name)}`], `node ${node.name} is removed`)}>Remove</button>`,
        },
    ].filter(Boolean);
}

function Nodes({ state }) {
    const gone = state.nodes.filter((node) => !node.alive).length;
    return html`<${Section} id="nodes" title="Nodes" note=${`${state.nodes.length - gone} report${gone ? `, ${gone} gone` : ""}`}>
        <${Table} label="Nodes" rows=${state.nodes} row_key=${(node) => node.name} columns=${node_columns(state)}
            search=${(node) => node.name} empty="No node has reported yet." />
    </>`;
}

// --- nodes on which submitted jobs run

function drained_text(node) {
    const { by, since_unix_s } = node.drained;
    return `by ${by} for ${format.duration(now_ms() / 1000 - since_unix_s)}`;
}

function drain_button(node) {
    const path = `/v1/gpu-nodes/${encodeURIComponent(node.node)}/drain`;
    if (node.drained) {
        return html`<button type="button" class="quiet" aria-label=${`Undrain ${node.node}`} onClick=${() => act("", ["DELETE", path], `node ${node.node} takes jobs again`)}>Undrain</button>`;
    }
    const question = `Drain node ${node.node}? It takes no further job, and those that run there go on.`;
    return html`<button type="button" class="quiet" aria-label=${`Drain ${node.node}`} onClick=${() => act(question, ["PUT", path], `node ${node.node} is drained`)}>Drain</button>`;
}

const gpu_node_columns = () =>
    [
        { name: "Node", stable: true, value: (node) => node.node, cell: (node) => node.node, grow: true },
        { name: "Type", stable: true, wide: true, value: (node) => node.gpu_type, cell: (node) => node.gpu_type },
        {
            name: "State",
            value: (node) => (node.drained ? "drained" : String(node.is_usable)),
            cell: (node) => {
                if (node.drained) return html`<${Tag} tone="warn">drained</> <small>${drained_text(node)}</small>`;
                return node.is_usable ? html`<${Tag} tone="good">takes jobs</>` : html`<${Tag} tone="bad">lost, or drained elsewhere</>`;
            },
        },
        { name: "GPUs", numeric: true, value: (node) => node.gpus, cell: (node) => node.gpus },
        { name: "Free", title: "GPUs that the next job may have", numeric: true, value: (node) => node.free_gpus, cell: (node) => node.free_gpus },
        { name: "Jobs", title: "that start, run or stop there", numeric: true, value: (node) => node.jobs, cell: (node) => node.jobs },
        may_operate() && { name: "", cell: drain_button },
    ].filter(Boolean);

function GpuNodes({ state }) {
    if (!state.runs_jobs) return null;
    const drained = new Set(state.gpu_nodes.filter((node) => node.drained).map((node) => node.node)).size;
    return html`<${Section} id="gpu-nodes" title="GPU nodes" note=${`for submitted jobs${drained ? `, ${drained} drained` : ""}`}>
        <${Table} label="GPU nodes" rows=${state.gpu_nodes} row_key=${(node) => `${node.node} ${node.gpu_type}`} columns=${gpu_node_columns()}
            search=${(node) => `${node.node} ${node.gpu_type}`} empty="The cluster manager has told no node yet." />
    </>`;
}

// --- tenants and history

const tenant_columns = [
    { name: "Tenant", stable: true, value: (row) => row.name, cell: (row) => (row.parent ? html`${row.name} <small>in ${row.parent}</small>` : row.name), grow: true },
    {
        name: "GPUs",
        title: "used of the quota, else of the share by weight",
        value: (row) => row.used_gpus,
        cell: (row) => html`<${Bar} used=${row.used_gpus} mark=${row.share_gpus} all=${row.gpu_quota ?? Math.max(row.share_gpus, row.used_gpus)} tone=${row.borrowed_gpus > 0 ? "warn" : "good"} label=${`${row.used_gpus} GPUs used, share ${format.number(row.share_gpus)}`} />`,
    },
    { name: "Used", numeric: true, value: (row) => row.used_gpus, cell: (row) => row.used_gpus },
    { name: "Quota", numeric: true, value: (row) => row.gpu_quota, cell: (row) => row.gpu_quota ?? "all" },
    { name: "Share", title: "by weight", numeric: true, wide: true, value: (row) => row.share_gpus, cell: (row) => format.number(row.share_gpus) },
    { name: "Borrowed", title: "above its share, or without a claim", numeric: true, value: (row) => row.borrowed_gpus, cell: (row) => format.number(row.borrowed_gpus) },
    { name: "Running", numeric: true, wide: true, value: (row) => row.jobs_running, cell: (row) => row.jobs_running },
    { name: "Waiting", numeric: true, wide: true, value: (row) => row.jobs_waiting, cell: (row) => row.jobs_waiting },
];

function Tenants({ state }) {
    if (!state.runs_jobs) return null;
    return html`<${Section} id="tenants" title="Tenants" note="GPUs used, quota and borrowed">
        <${Table} label="Tenants" rows=${state.tenants} row_key=${(row) => row.name} columns=${tenant_columns} empty="No tenant." />
    </>`;
}

export const OUTCOMES = { succeeded: "good", failed: "bad", cancelled: "" };

const history_columns = [
    { name: "Job", stable: true, value: (job) => job.name, cell: (job) => html`<a href=${`#/queue/${job.id}`}>${job.name}</a>`, grow: true },
    { name: "Ended", stable: true, descends: true, value: (job) => job.ended_unix_s, cell: (job) => format.clock(job.ended_unix_s) },
    { name: "Outcome", stable: true, value: (job) => job.state, cell: (job) => html`<${Tag} tone=${OUTCOMES[job.state]}>${job.state}</>` },
    { name: "Ran", stable: true, numeric: true, value: (job) => job.ran_s, cell: (job) => format.duration(job.ran_s) },
    { name: "Read", stable: true, numeric: true, wide: true, value: (job) => job.read_bytes, cell: (job) => format.bytes(job.read_bytes) },
    { name: "Tenant", stable: true, wide: true, value: (job) => job.tenant, cell: (job) => job.tenant },
    { name: "Reason", wide: true, cell: (job) => html`<span class="why" title=${job.end_reason}>${job.end_reason ?? ""}</span>` },
];

const event_columns = [
    { name: "Time", stable: true, descends: true, value: (event) => event.number, cell: (event) => format.clock(event.unix_ms / 1000) },
    { name: "Event", stable: true, value: (event) => event.kind, cell: (event) => event.kind.replaceAll("_", " ") },
    { name: "What happened", grow: true, cell: (event) => html`<span class="why" title=${event.message}>${event.message}</span>` },
];

function History({ state }) {
    return html`<${Section} id="history" title="History" note="ended jobs, and the latest events">
        ${state.runs_jobs
            ? html`<${Table} label="Ended jobs" rows=${state.history} row_key=${(job) => job.id} columns=${history_columns} search=${(job) => `${job.name} ${job.tenant} ${job.state}`} empty="No submitted job has ended." />`
            : null}
        <${Table} label="Events" rows=${state.events} row_key=${(event) => event.number} columns=${event_columns} search=${(event) => `${event.kind} ${event.message}`} empty="No event yet." />
    </>`;
}

export function Cluster({ state }) {
    return html`<${Jobs} state=${state} /><${Waiting} state=${state} /><${Datasets} state=${state} /><${Remote} state=${state} />
        <${Nodes} state=${state} /><${GpuNodes} state=${state} /><${Tenants} state=${state} /><${History} state=${state} />`;
}

export const sections = () =>
    [
        ["jobs", "Jobs"],
        store.state.runs_jobs && ["waiting", "Waiting"],
        ["datasets", "Datasets"],
        ["remote", "Remote"],
        ["nodes", "Nodes"],
        store.state.runs_jobs && ["gpu-nodes", "GPU nodes"],
        store.state.runs_jobs && ["tenants", "Tenants"],
        ["history", "History"],
    ].filter(Boolean);
