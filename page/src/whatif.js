// What if a dataset had another quota, or the remote another bandwidth: the allocator predicts, nothing is set. An
// operator may then pin the quota, or set the bandwidth.

import { Component } from "preact";
import { ask } from "./api.js";
import * as format from "./format.js";
import { html } from "./html.js";
import { act } from "./parts.js";
import { may_operate, store, update } from "./store.js";
import { Table } from "./table.js";

const ASK_AFTER_MS = 120;
const REMOTE_MAX = 3; // times B
const STEPS = 1000;

const columns = [
    { name: "Job", stable: true, value: (job) => job.name, cell: (job) => job.name, grow: true },
    { name: "As planned", numeric: true, value: (job) => job.before?.steady_bytes_per_second, cell: (job) => format.rate(job.before?.steady_bytes_per_second) },
    { name: "Then", numeric: true, value: (job) => job.after?.steady_bytes_per_second, cell: (job) => format.rate(job.after?.steady_bytes_per_second) },
    {
        name: "Change",
        numeric: true,
        value: (job) => job.after?.steady_bytes_per_second / job.before?.steady_bytes_per_second,
        cell: (job) => {
            const text = format.change(job.before?.steady_bytes_per_second, job.after?.steady_bytes_per_second);
            return html`<span class=${text.startsWith("+") ? "up" : text.startsWith("−") ? "down" : "muted"}>${text}</span>`;
        },
    },
    { name: "Hits then", numeric: true, wide: true, value: (job) => job.after?.steady_hit_ratio, cell: (job) => format.percent(job.after?.steady_hit_ratio) },
    { name: "f*", numeric: true, wide: true, value: (job) => job.ideal_bytes_per_second, cell: (job) => format.rate(job.ideal_bytes_per_second) },
];

export class WhatIf extends Component {
    timer = 0;
    asked = 0;

    constructor(props) {
        super(props);
        const name = props.dataset ?? "";
        const set = store.state.datasets.find((each) => each.name === name);
        this.state = {
            dataset: name,
            bytes: set ? (set.pinned_bytes ?? set.quota_bytes) : 0,
            has_bytes: false,
            remote: store.state.status.remote_bytes_per_second,
            has_remote: false,
        };
    }

    componentDidMount() {
        this.dialog.showModal();
        this.predict();
    }

    componentWillUnmount() {
        clearTimeout(this.timer);
    }

    change(change) {
        this.setState(change);
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.predict(), ASK_AFTER_MS);
    }

    async predict() {
        const { dataset, bytes, has_bytes, remote, has_remote } = this.state;
        const body = {};
        if (dataset && has_bytes) body.pins = [{ dataset, bytes }];
        if (has_remote) body.remote_bytes_per_second = remote;
        const number = ++this.asked;
        try {
            const answer = await ask("POST", "/v1/whatif", body);
            if (number === this.asked) this.setState({ answer, problem: "" });
        } catch (error) {
            if (number === this.asked) this.setState({ answer: undefined, problem: error.message });
        }
    }

    choose = (event) => {
        const set = store.state.datasets.find((each) => each.name === event.currentTarget.value);
        this.change({ dataset: set?.name ?? "", bytes: set ? (set.pinned_bytes ?? set.quota_bytes) : 0, has_bytes: false });
    };

    // The most that a quota could be: the dataset, or all caches.
    bytes_max() {
        const set = store.state.datasets.find((each) => each.name === this.state.dataset);
        const cache = store.state.nodes.reduce((sum, node) => sum + (node.alive ? node.capacity.memory_bytes + node.capacity.disk_bytes : 0), 0);
        return Math.max(1, Math.min(set?.size_bytes ?? 1, cache));
    }

    apply_pin = async () => {
        const { dataset, bytes } = this.state;
        const done = `the quota of ${dataset} is pinned to ${format.bytes(bytes)}`;
        if (await act("", ["PUT", `/v1/datasets/${encodeURIComponent(dataset)}/pin`, { bytes }], done)) this.close();
    };

    release = async () => {
        const { dataset } = this.state;
        const done = `the allocator plans the quota of ${dataset} again`;
        if (await act("", ["DELETE", `/v1/datasets/${encodeURIComponent(dataset)}/pin`], done)) this.close();
    };

    apply_remote = async () => {
        const { remote } = this.state;
        if (await act("", ["PUT", "/v1/remote", { bytes_per_second: remote }], `B is ${format.rate(remote)}`)) this.close();
    };

    close = () => update({ whatif: undefined });

    render(_, { dataset, bytes, has_bytes, remote, has_remote, answer, problem }) {
        const state = store.state;
        const set = state.datasets.find((each) => each.name === dataset);
        const bytes_max = this.bytes_max();
        const remote_max = REMOTE_MAX * (state.status.remote_bytes_per_second ?? 1);
        return html`<dialog class="whatif" aria-labelledby="whatif-title" ref=${(dialog) => (this.dialog = dialog)} onCancel=${this.close} onClose=${this.close}>
            <header><h2 id="whatif-title">What if…</h2><button type="button" class="quiet" aria-label="Close" onClick=${this.close}>Close</button></header>
            <div class="controls">
                <label>Dataset
                    <select value=${dataset} onChange=${this.choose}>
                        <option value="">none</option>
                        ${state.datasets.map((each) => html`<option value=${each.name}>${each.name}</option>`)}
                    </select>
                </label>
                <label>Quota over all nodes <output>${set ? format.bytes(bytes) : "–"}</output>
                    <input name="quota" type="range" min="0" max=${STEPS} value=${Math.round((STEPS * bytes) / bytes_max)} disabled=${!set}
                        aria-valuetext=${format.bytes(bytes)}
                        onInput=${(event) => this.change({ bytes: Math.round((bytes_max * event.currentTarget.value) / STEPS), has_bytes: true })} />
                </label>
                <label>Remote bandwidth B <output>${format.rate(remote)}</output>
                    <input name="remote" type="range" min="1" max=${STEPS} value=${Math.round((STEPS * remote) / remote_max)}
                        aria-valuetext=${format.rate(remote)}
                        onInput=${(event) => this.change({ remote: (remote_max * event.currentTarget.value) / STEPS, has_remote: true })} />
                </label>
            </div>
            ${problem ? html`<p class="problem" role="alert">${problem}</p>` : null}
            ${answer
                ? html`<p class="sum" aria-live="polite">All jobs together would take <b>${format.rate(answer.after.steady_remote_bytes_per_second)}</b> of the remote
                          (as planned ${format.rate(answer.before.steady_remote_bytes_per_second)}), and nodes would fetch <b>${format.bytes(answer.after.moved_bytes)}</b>. Rates hold once caches are filled; nothing is set.</p>
                      <${Table} label="Predicted rates" rows=${answer.jobs} row_key=${(job) => job.name} columns=${columns} search=${(job) => job.name} empty="No job runs." />`
                : problem ? null : html`<p class="empty">…</p>`}
            <p class="buttons">
                ${may_operate()
                    ? html`${set?.pinned_bytes !== undefined ? html`<button type="button" class="quiet" onClick=${this.release}>Release the pin</button>` : null}
                          <button type="button" disabled=${!has_remote} onClick=${this.apply_remote}>Set B</button>
                          <button type="button" disabled=${!set || !has_bytes} onClick=${this.apply_pin}>Apply: pin the quota</button>`
                    : html`<small>Only an operator may apply it.</small>`}
            </p>
        </dialog>`;
    }
}
