// One job: its rates beside the model's prediction, what limits it, why it waits, and its decision log.

import { Component } from "preact";
import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { cancel, learn_why, OUTCOMES, why_of } from "./cluster.js";
import * as format from "./format.js";
import { html } from "./html.js";
import { Limit, Section, Tag } from "./parts.js";
import { is_visible, may_cancel, store, watch_job } from "./store.js";

const LINES = [
    ["measured f", "--accent"],
    ["predicted f", "--second", [6, 4]],
    ["f*", "--muted", [2, 3]],
    ["granted b", "--third"],
];
const REFRESH_MS = 3000;
const RATES_MS = 10_000; // the allocator takes a sample as often
const GAP_S = 2.5 * (RATES_MS / 1000);

// The page's own samples, one a second, and the allocator's of the time when the page was hidden or not open.
function merged(past, live) {
    const rows = [];
    let at = 0;
    for (const row of past) {
        while (at < live.length && live[at][0] < row[0]) rows.push(live[at++]);
        const before_s = row[0] - (live[at - 1]?.[0] ?? -Infinity);
        const after_s = (live[at]?.[0] ?? Infinity) - row[0];
        if (Math.min(before_s, after_s) > RATES_MS / 2000) rows.push(row);
    }
    return rows.concat(live.slice(at));
}

// The columns of the chart. A row without values breaks its lines where nobody took samples.
function columns_of(past, live) {
    const rows = [];
    let last_s = Infinity;
    for (const row of merged(past, live)) {
        if (row[0] - last_s > GAP_S) rows.push([last_s + GAP_S / 2, null, null, null, null]);
        rows.push(row);
        last_s = row[0];
    }
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
    state = { past: [], submitted: null };
    rates_asked_ms = -Infinity;

    componentDidMount() {
        this.refresh();
        this.timer = setInterval(() => is_visible() && this.refresh(), REFRESH_MS);
        document.getElementById("job-title")?.focus();
    }

    componentWillUnmount() {
        clearInterval(this.timer);
        this.is_gone = true;
    }

    // Its number, or its name if it is known as a submitted job.
    submitted_as() {
        const { name, id } = this.props;
        const { queue, history } = store.state;
        const is_it = (job) => job.name === name;
        return id ?? (queue.some(is_it) || history.some(is_it) ? encodeURIComponent(name) : undefined);
    }

    // Asks for the rates again once the allocator has taken another sample.
    needs_rates(name) {
        const needs = performance.now() - this.rates_asked_ms >= RATES_MS && store.state.jobs.some((job) => job.name === name && job.running);
        if (needs) this.rates_asked_ms = performance.now();
        return needs;
    }

    async refresh() {
        const found = async (request) => {
            try {
                return await request;
            } catch {
                return null; // not known there
            }
        };
        const known_as = this.submitted_as();
        const submitted = known_as && (await found(ask("GET", `/v1/queue/${known_as}`)));
        if (this.is_gone) return;
        const name = this.props.name ?? submitted?.name;
        if (name) watch_job(name);
        const rates = this.needs_rates(name) && (await found(ask("GET", `/v1/jobs/${encodeURIComponent(name)}/rates`)));
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
            add("Submitter", submitted.submitter);
            add("GPUs", submitted.gpus);
            add("Submitted", format.clock(submitted.submitted_unix_s));
            add("Attempts", submitted.attempt);
            const why = why_of(submitted);
            if (why?.place !== undefined) add("Place in the queue", why.place);
            if (why?.starts_unix_s !== undefined) add("May start", format.clock(why.starts_unix_s));
        }
        return facts;
    }

    render({ name, id, state }, { past, submitted }) {
        const shown = name ?? submitted?.name ?? `Job ${id}`;
        const job = state.jobs.find((each) => each.name === shown);
        const data = columns_of(past, store.watched.job === shown ? store.watched.samples : []);
        const why = submitted && why_of(submitted)?.why;
        const is_active = submitted && !(submitted.state in OUTCOMES);
        return html`<p class="back"><a href="#/">← All jobs</a></p>
            <${Section} id="job" title=${shown} note=${job?.running ? "running" : (submitted?.state ?? "not running")}>
                ${why ? html`<p class="said-why">${why}</p>` : null}
                <dl class="facts">${this.facts(job, submitted).map(([term, value]) => html`<div><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>
                ${is_active && may_cancel(submitted) ? html`<p class="buttons"><button type="button" class="danger" onClick=${() => cancel(submitted)}>Cancel this job</button></p>` : null}
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
