// larderd's page: its own node. Its jobs, its datasets, its tiers, peers and faults.

import { ask, is_ended } from "./api.js";
import * as format from "./format.js";
import { html } from "./html.js";
import { act, Bar, ratio, say, Section, Tag } from "./parts.js";
import { changed, may_operate, store, update } from "./store.js";
import { Table } from "./table.js";
import { record } from "./trace.js";

export const node_sections = [
    ["jobs", "Jobs"],
    ["datasets", "Datasets"],
    ["node", "Node"],
];

const stored = (amounts) => amounts.memory_bytes + amounts.disk_bytes;

const hits_of = ({ counters }) => {
    const hits = counters.memory_hits + counters.disk_hits + counters.peer_hits;
    return ratio(hits, hits + counters.misses);
};

// --- jobs

const job_columns = () =>
    [
        { name: "Job", stable: true, value: (job) => job.job, cell: (job) => job.job, grow: true },
        { name: "Dataset", stable: true, wide: true, value: (job) => job.dataset, cell: (job) => job.dataset || "–" },
        { name: "User", stable: true, wide: true, value: (job) => job.user, cell: (job) => job.user ?? "–" },
        { name: "f", title: "the rate of the last seconds", numeric: true, value: (job) => job.rate_bytes_per_second, cell: (job) => format.rate(job.rate_bytes_per_second) },
        { name: "Hits", title: "since the job came", numeric: true, value: hits_of, cell: (job) => format.percent(hits_of(job)) },
        { name: "Remote limit", numeric: true, value: (job) => job.remote_rate, cell: (job) => (job.remote_rate > 0 ? format.rate(job.remote_rate) : "none") },
        { name: "Epoch", numeric: true, wide: true, value: (job) => job.epoch, cell: (job) => job.epoch },
        { name: "Unread", numeric: true, wide: true, value: (job) => job.unread_bytes, cell: (job) => format.bytes(job.unread_bytes) },
        { name: "Cached ahead", numeric: true, wide: true, value: (job) => job.effective_cache_bytes, cell: (job) => format.bytes(job.effective_cache_bytes) },
        { name: "Waited", title: "the time that its loaders waited for data", numeric: true, wide: true, value: (job) => job.stall_s, cell: (job) => format.duration(job.stall_s) },
        may_operate() && {
            name: "",
            cell: (job) => html`<button type="button" class="quiet" aria-label=${`Trace ${job.job}`} onClick=${() => record(job.job)}>Trace…</button>
                <button type="button" class="quiet" aria-label=${`Limit ${job.job}`} onClick=${() => update({ limit: job })}>Limit…</button>`,
        },
    ].filter(Boolean);

// --- datasets

const TASK_MS = 500;

async function warm(name) {
    const started = await act("", ["POST", `/v1/datasets/${encodeURIComponent(name)}/warm`, {}], `${name} is being warmed`);
    if (!started) return;
    const { tasks } = store.state;
    for (;;) {
        let task;
        try {
            task = await ask("GET", `/v1/tasks/${started.task}`);
        } catch (error) {
            tasks.delete(name);
            return is_ended(error) ? undefined : say(error.message, "bad");
        }
        tasks.set(name, task);
        changed();
        if (task.state !== "running") {
            tasks.delete(name);
            return task.error ? say(task.error.message, "bad") : say(`${name} is warm`);
        }
        await new Promise((done) => setTimeout(done, TASK_MS));
    }
}

function Warming({ task }) {
    const part = ratio(task.done, task.total);
    return html`<${Bar} used=${task.done} all=${task.total} label=${`warming, ${format.percent(part)}`} /><small>${format.percent(part)}</small>`;
}

const faults_of = (set) => [
    ...(set.offline ? [set.offline] : []),
    ...(set.disk_full ? ["the cache disk is full"] : []),
    ...(set.quarantined_blocks > 0 ? [`${set.quarantined_blocks} blocks are quarantined`] : []),
];

const dataset_columns = () =>
    [
        { name: "Dataset", stable: true, value: (set) => set.name, cell: (set) => set.name, grow: true },
        {
            name: "c/d",
            title: "the part that is cached on this node",
            value: (set) => set.cached_ratio,
            cell: (set) => html`<${Bar} used=${set.cached_ratio} all=${1} label=${`${format.percent(set.cached_ratio)} cached`} /><small>${format.percent(set.cached_ratio)}</small>`,
        },
        { name: "Size", numeric: true, wide: true, value: (set) => set.total_bytes, cell: (set) => format.bytes(set.total_bytes) },
        { name: "Hits", title: "since the daemon started", numeric: true, value: hits_of, cell: (set) => format.percent(hits_of(set)) },
        { name: "Quota", numeric: true, value: (set) => stored(set.quota), cell: (set) => html`${format.bytes(stored(set.quota))} <small>${set.quota_held ? "by hand" : "by plan"}</small>` },
        { name: "Used", numeric: true, wide: true, value: (set) => stored(set.used), cell: (set) => format.bytes(stored(set.used)) },
        { name: "Format", stable: true, wide: true, value: (set) => set.format, cell: (set) => set.format },
        {
            name: "Faults",
            descends: true,
            value: (set) => faults_of(set).length,
            cell: (set) => {
                const text = faults_of(set).join("; ");
                return text ? html`<span class="why fault" title=${text}>${text}</span>` : html`<span class="muted">none</span>`;
            },
        },
        may_operate() && {
            name: "",
            cell: (set) => {
                const task = store.state.tasks.get(set.name);
                if (task) return html`<${Warming} task=${task} />`;
                return html`<button type="button" class="quiet" aria-label=${`Warm ${set.name}`} onClick=${() => warm(set.name)}>Warm</button>`;
            },
        },
    ].filter(Boolean);

// --- the node

const peer_columns = [
    { name: "Peer", stable: true, value: (peer) => peer.node || peer.endpoint, cell: (peer) => peer.node || peer.endpoint, grow: true },
    { name: "State", value: (peer) => String(peer.answers), cell: (peer) => (peer.answers ? html`<${Tag} tone="good">answers</>` : html`<${Tag} tone="bad">silent</>`) },
    { name: "Blocks held", numeric: true, value: (peer) => peer.held_blocks, cell: (peer) => peer.held_blocks },
    { name: "Room", numeric: true, wide: true, value: (peer) => peer.room_bytes, cell: (peer) => format.bytes(peer.room_bytes) },
    { name: "Problem", grow: true, cell: (peer) => html`<span class="why">${peer.problem || "none"}</span>` },
];

function problems_of({ status }) {
    return [
        ...status.problems,
        ...(status.index_problem ? [status.index_problem] : []),
        ...(status.allocator?.problem ? [`allocator: ${status.allocator.problem}`] : []),
        ...status.outages.map((outage) => `${outage.endpoint} does not answer for ${format.duration(outage.seconds)}: ${outage.problem}`),
    ];
}

function Facts({ state }) {
    const { status } = state;
    const { allocator } = status;
    const facts = [
        ["Version", status.version],
        ["Up", format.duration(status.uptime_s)],
        ["I/O", status.io === "io_uring" ? "io_uring" : `threads: ${status.io_reason}`],
        ["Sessions", status.sessions],
        ["Allocator", allocator ? (allocator.connected ? `plan ${allocator.plan}, lease for ${format.duration(allocator.lease_left_s)}` : "not connected") : "none"],
    ];
    return html`<dl class="facts">${facts.map(([term, value]) => html`<div><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Node({ state }) {
    const { status, datasets, jobs } = state;
    if (!status.io) return null;
    const sum = (what, key) => datasets.reduce((all, set) => all + set[what][key], 0);
    const tier = (name, key, all) => html`<div class="meter">
        <span>${name}</span>
        <${Bar} used=${sum("used", key)} mark=${sum("quota", key)} all=${all} label=${`${name}: ${format.bytes(sum("used", key))} used of ${format.bytes(all)}`} />
        <b>${format.bytes(sum("used", key))} <small>of ${format.bytes(all)}</small></b><small>${format.percent(ratio(sum("used", key), all))}</small>
    </div>`;
    const problems = problems_of(state);
    return html`
        ${problems.map((text) => html`<p class="problem" role="alert">${text}</p>`)}
        <${Section} id="jobs" title="Jobs" note=${`${jobs.filter((job) => job.sessions > 0).length} read on this node`}>
            <${Table} label="Jobs" rows=${jobs} row_key=${(job) => JSON.stringify([job.job, job.dataset])} columns=${job_columns()} search=${(job) => `${job.job} ${job.dataset}`} empty="No job reads on this node." />
        </>
        <${Section} id="datasets" title="Datasets" note=${`${datasets.length} datasets`}>
            <${Table} label="Datasets" rows=${datasets} row_key=${(set) => set.name} columns=${dataset_columns()} search=${(set) => set.name} empty="This node has no dataset." />
        </>
        <${Section} id="node" title="Node" note=${problems.length ? `${problems.length} faults` : "no faults"}>
            <div class="meters">${tier("Memory", "memory_bytes", status.memory_bytes)} ${tier("Disk", "disk_bytes", status.disk_bytes)}</div>
            <p></p>
            <${Facts} state=${state} />
            ${status.peers ? html`<p></p><${Table} label="Peers" rows=${status.peers.others} row_key=${(peer) => peer.endpoint} columns=${peer_columns} empty="No peer is known." />` : null}
        </>`;
}

// --- a limit by hand

export function LimitForm({ job }) {
    const close = () => update({ limit: undefined });
    const path = `/v1/jobs/${encodeURIComponent(job.job)}/limit`;
    const set = async (event) => {
        event.preventDefault();
        const rate = 1e6 * Number(new FormData(event.currentTarget).get("rate"));
        const request = ["PUT", path, { rate_bytes_per_second: rate }];
        if (await act("", request, `${job.job} may take ${rate > 0 ? format.rate(rate) : "any rate"} of the remote here`)) close();
    };
    const release = async () => {
        if (await act("", ["DELETE", path], `the config's limit of ${job.job} holds again`)) close();
    };
    return html`<dialog class="question" aria-labelledby="limit-title" ref=${(dialog) => dialog && !dialog.open && dialog.showModal()} onCancel=${close} onClose=${close}>
        <form onSubmit=${set}>
            <h2 id="limit-title">Limit ${job.job} on this node</h2>
            <p><label>Remote bandwidth in MB/s; 0 is no limit <input name="rate" type="number" min="0" step="any" required defaultValue=${job.remote_rate / 1e6} /></label></p>
            <p class="buttons">
                <button type="button" class="quiet" onClick=${close}>Keep as it is</button>
                <button type="button" class="quiet" onClick=${release}>As in the config</button>
                <button type="submit">Limit</button>
            </p>
        </form>
    </dialog>`;
}
