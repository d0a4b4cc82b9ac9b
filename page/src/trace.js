// What happens to the blocks that a job asks for, recorded on demand: the steps, and the slowest blocks as waterfalls.

import { ANSWER_MS, ask } from "./api.js";
import * as format from "./format.js";
import { html } from "./html.js";
import { store, update } from "./store.js";
import { Table } from "./table.js";

const SECONDS = 5;
const BLOCKS = 1000;
const BLOCKS_DRAWN = 8;

export async function record(job) {
    const trace = { job };
    const is_open = () => store.state.trace?.job === job;
    update({ trace });
    try {
        const answer = await ask("POST", `/v1/jobs/${encodeURIComponent(job)}/trace`, { seconds: SECONDS, blocks: BLOCKS }, { patience_ms: 1000 * SECONDS + ANSWER_MS });
        if (is_open()) update({ trace: { job, answer } });
    } catch (error) {
        if (is_open()) update({ trace: { job, problem: error.message } });
    }
}

const columns_of = (steps) => [
    { name: "Step", stable: true, value: (step) => steps.indexOf(step), cell: (step) => html`${step.part_of_read ? "of the read: " : ""}${step.step}`, grow: true },
    { name: "Count", numeric: true, cell: (step) => step.count },
    { name: "Median", numeric: true, cell: (step) => format.span(step.median_ns) },
    { name: "p99", numeric: true, cell: (step) => format.span(step.p99_ns) },
    { name: "Share", title: "of the time from taking a block to its delivery", numeric: true, cell: (step) => format.percent(step.share) },
];

function outcome(block) {
    if (block.status === null) return "not delivered yet";
    if (block.status !== "ok") return block.status;
    return `from ${block.source}${block.admitted ? `, admitted to ${block.admitted}` : ""}`;
}

function Waterfall({ block, trace_ends_ns }) {
    const ended = (step) => step.ended_ns ?? trace_ends_ns;
    const delivered_ns = block.delivered_ns ?? trace_ends_ns;
    const last_ns = Math.max(delivered_ns, ...block.steps.map(ended));
    const part = (ns) => `${(100 * ns) / Math.max(1, last_ns - block.taken_ns)}%`;
    return html`<figure class="waterfall">
        <figcaption><b>${format.span(delivered_ns - block.taken_ns)}</b> block ${block.block} of ${block.dataset || "a removed dataset"}, ${format.bytes(block.bytes)}, ${outcome(block)}</figcaption>
        ${block.steps.map((step) => {
            const length_ns = ended(step) - step.began_ns;
            return html`<span class="step">${step.step}</span><span class="num">${format.span(length_ns)}</span>
                <span class="bar" role="img" aria-label=${`begins after ${format.span(step.began_ns - block.taken_ns)}, takes ${format.span(length_ns)}`}>
                    <span class="fill" style=${{ left: part(step.began_ns - block.taken_ns), width: part(length_ns) }}></span>
                </span>`;
        })}
    </figure>`;
}

const took_ns = (block, answer) => (block.delivered_ns ?? answer.duration_ns) - block.taken_ns;

function Recorded({ answer }) {
    if (answer.blocks.length === 0) return html`<p class="empty">The job asked for no block in ${format.span(answer.duration_ns)}.</p>`;
    const slowest = [...answer.blocks].sort((a, b) => took_ns(b, answer) - took_ns(a, answer)).slice(0, BLOCKS_DRAWN);
    return html`<p class="sum">${answer.blocks.length} blocks in ${format.span(answer.duration_ns)}</p>
        <${Table} label="Steps" rows=${answer.steps} row_key=${(step) => step.step} columns=${columns_of(answer.steps)} empty="No block needed a step." />
        <h3>The slowest blocks</h3>
        ${slowest.map((block) => html`<${Waterfall} block=${block} trace_ends_ns=${answer.duration_ns} />`)}`;
}

export function Trace({ trace }) {
    const close = () => update({ trace: undefined });
    return html`<dialog class="whatif" aria-labelledby="trace-title" ref=${(dialog) => dialog && !dialog.open && dialog.showModal()} onCancel=${close} onClose=${close}>
        <header><h2 id="trace-title">Blocks of ${trace.job}</h2><button type="button" class="quiet" aria-label="Close" onClick=${close}>Close</button></header>
        ${trace.problem ? html`<p class="problem" role="alert">${trace.problem}</p>` : null}
        ${trace.answer ? html`<${Recorded} answer=${trace.answer} />` : trace.problem ? null : html`<p class="empty" role="status">Recording for ${SECONDS} seconds…</p>`}
    </dialog>`;
}
