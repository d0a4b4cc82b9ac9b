// One job: its rates beside the model's prediction, what limits it, why it waits, and its decision log.

import { Component } from "preact";
import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { cancel, learn_why, OUTCOMES, why_of } from "./cluster.js";
import * as format from "./format.js";
import { html } from "./html.js";
import { Limit, Section, Tag } from "./parts.js";
import { may_cancel, store } from "./store.js";

const LINES = [
    ["measured f", "--accent"],
    ["predicted f", "--second", [6, 4]],
    ["f*", "--muted", [2, 3]],
    ["granted b", "--third"],
];
const REFRESH_MS = 3000;

// The allocator's samples up to the page's own, which are one a second.
function columns_of(past, live) {
    const begin = live[0]?.[0] ?? Infinity;
    const rows = past.filter((row) => row[0] < begin - 0.5).concat(live);
    return [0, 1, 2, 3, 4].map((at) => rows.map((row) => row[at]));
}

const row_of = (sample) => [
    sample.unix_ms / 1000,
    sample.measured_bytes_per_second ?? null,
    sample.predicted_bytes_per_second,
    sample.ideal_bytes_per_second,
    sample.granted_bytes_per_second,
];

export class Job extends Component {
    state = { past: [], submitted: null, problem: "" };

    componentDidMount() {
        this.refresh();
        this.timer = setInterval(() => this.refresh(), REFRESH_MS);
        document.getElementById("job-title")?.focus();
    }

    componentWillUnmount() {
        clearInterval(this.timer);
        this.is_gone = true;
    }

    // By its name, or by its number.
    is_submitted(name) {
        const { queue, history } = store.state;
        const is_it = (job) => job.name === name || String(job.id) === name;
        return queue.some(is_it) || history.some(is_it);
    }

    async refresh() {
        const { name } = this.props;
        const path = encodeURIComponent(name);
        const found = async (request) => {
            try {
                return await request;
            } catch {
                return null; // not known there
            }
        };
        const [rates, submitted] = await Promise.all([
            this.state.past.length || !store.state.jobs.some((job) => job.name === name && job.running) ? null : found(ask("GET", `/v1/jobs/${path}/rates`)),
            this.is_submitted(name) ? found(ask("GET", `/v1/queue/${path}`)) : null,
        ]);
        if (this.is_gone) return;
        if (submitted) learn_why(submitted);
        this.setState({ submitted, past: rates ? rates.rates.map(row_of) : this.state.past });
    }

    facts(job, submitted) {
        const facts = [];
        const add = (name, value) => value !== undefined && value !== null && facts.push([name, value]);
        if (job?.running) {
            add("Limited by", html`<${Limit} limit=${job.limited_by} />`);
            add("f, measured", format.rate(job.measured_bytes_per_second));
            add("f, predicted", format.rate(job.predicted_bytes_per_second));
            add("f*", format.rate(job.ideal_bytes_per_second));
            add("Hits", format.percent(job.hit_ratio));
            add("Granted b", format.rate(job.bandwidth_bytes_per_second));
            add("Equal share", format.rate(job.equal_share_bytes_per_second));
            add("Once caches are filled", format.rate(job.steady_bytes_per_second));
            add("Stall", format.percent(job.stall_ratio));
            add("Unread", format.bytes(job.unread_bytes));
            add("Nodes", job.nodes.length > 6 ? `${job.nodes.slice(0, 6).join(", ")} and ${job.nodes.length - 6} more` : job.nodes.join(", "));
        }
        add("Dataset", job?.dataset ?? submitted?.dataset);
        if (submitted) {
            add("State", html`<${Tag} tone=${OUTCOMES[submitted.state] ?? "wait"}>${submitted.state}</>`);
            add("Tenant", submitted.tenant);
            add("GPUs", submitted.gpus);
            add("Submitted", format.clock(submitted.submitted_unix_s));
            add("Attempts", submitted.attempt);
            const why = why_of(submitted);
            if (why?.place !== undefined) add("Place in the queue", why.place);
            if (why?.starts_unix_s !== undefined) add("May start", format.clock(why.starts_unix_s));
        }
        return facts;
    }

    render({ name, state }, { past, submitted }) {
        const shown = submitted?.name ?? name;
        const job = state.jobs.find((each) => each.name === shown);
        const data = columns_of(past, store.samples.get(shown) ?? []);
        const why = submitted && why_of(submitted)?.why;
        const is_active = submitted && !(submitted.state in OUTCOMES);
        return html`<p class="back"><a href="#/">← All jobs</a></p>
            <${Section} id="job" title=${shown} note=${job?.running ? "running" : (submitted?.state ?? "not running")}>
                ${why ? html`<p class="said-why">${why}</p>` : null}
                <dl class="facts">${this.facts(job, submitted).map(([term, value]) => html`<div><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>
                ${is_active && may_cancel() ? html`<p class="buttons"><button type="button" class="danger" onClick=${() => cancel(submitted)}>Cancel this job</button></p>` : null}
            </>
            <${Section} id="rates" title="Rates" note="measured, beside what the model predicts">
                ${data[0].length > 1 ? html`<${Chart} label=${`Rates of ${shown} over time`} data=${data} lines=${LINES} />` : html`<p class="empty">No rates yet.</p>`}
            </>
            ${submitted
                ? html`<${Section} id="log" title="Decision log" note="the latest first">
                      <ol class="log">${(submitted.log ?? []).toReversed().map((entry) => html`<li><time>${format.clock(entry.unix_s)}</time> ${entry.text}</li>`)}</ol>
                  </>`
                : null}`;
    }
}
