// What the page knows of the daemon. Views read `store.state` and are drawn again, once per frame at most, after it
// changes.

import { ask, read_events, Refused, token } from "./api.js";

const STATUS_MS = 1000;
const SLOW_MS = 3000;
const RETRY_MS = 1000;
const EVENTS_MAX = 300;
const LIVE_SAMPLES_MAX = 900;

const initial = () => ({
    kind: "", // "allocator" or "node", once it is known
    connection: "connecting", // "live", "lost"
    problem: "",
    needs_token: false,
    access: { name: "", role: "" },
    status: {},
    nodes: [],
    datasets: [],
    jobs: [],
    events: [],
    queue: [],
    runs_jobs: false,
    policy: "",
    tenants: [],
    history: [],
    tasks: {},
});

export const store = {
    state: initial(),
    draw: () => {},
    samples: new Map(), // job: its rates while this page was open
};

let frame = 0;
export function changed() {
    if (frame) return;
    frame = requestAnimationFrame(() => {
        frame = 0;
        store.draw();
    });
}

export function update(change) {
    Object.assign(store.state, change);
    changed();
}

const is_visible = () => document.visibilityState === "visible";

function note_samples(jobs) {
    const unix_s = Date.now() / 1000;
    const running = new Set();
    for (const job of jobs) {
        if (!job.running) continue;
        running.add(job.name);
        let rows = store.samples.get(job.name);
        if (!rows) store.samples.set(job.name, (rows = []));
        rows.push([
            unix_s,
            job.measured_bytes_per_second ?? null,
            job.predicted_bytes_per_second,
            job.ideal_bytes_per_second,
            job.bandwidth_bytes_per_second,
        ]);
        if (rows.length > LIVE_SAMPLES_MAX) rows.splice(0, rows.length - LIVE_SAMPLES_MAX);
    }
    for (const name of store.samples.keys()) if (!running.has(name)) store.samples.delete(name);
}

let stream = null;

async function follow_allocator() {
    stream = new AbortController();
    const signal = stream.signal;
    const seen = store.state.events.at(-1)?.number ?? 0;
    await read_events(`/v1/events/stream?after=${seen}&status_ms=${STATUS_MS}`, signal, (kind, data) => {
        if (kind !== "status") {
            const events = store.state.events.filter((event) => event.number < data.number);
            events.push(data);
            return update({ events: events.slice(-EVENTS_MAX) });
        }
        note_samples(data.jobs);
        update({ ...data, connection: "live", problem: "" });
    });
    throw new Error("the daemon ended the stream");
}

async function follow_node() {
    for (;;) {
        const [status, datasets, jobs] = await Promise.all([
            ask("GET", "/v1/status"),
            ask("GET", "/v1/datasets"),
            ask("GET", "/v1/jobs"),
        ]);
        update({ status, datasets: datasets.datasets, jobs: jobs.jobs, connection: "live", problem: "" });
        await sleep(STATUS_MS);
        while (!is_visible()) await sleep(STATUS_MS);
    }
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// What the stream does not have.
export async function refresh_slow() {
    const state = store.state;
    if (state.kind !== "allocator" || state.needs_token || state.connection !== "live") return;
    const status = await ask("GET", "/v1/status");
    const change = { status, runs_jobs: status.policy !== undefined };
    if (change.runs_jobs) {
        const [queue, history, tenants] = await Promise.all([
            ask("GET", "/v1/queue"),
            ask("GET", "/v1/history?limit=200"),
            ask("GET", "/v1/tenants"),
        ]);
        Object.assign(change, { queue: queue.jobs, policy: queue.policy, history: history.jobs, tenants: tenants.tenants });
    }
    update(change);
}

async function run_slow() {
    for (;;) {
        try {
            if (is_visible()) await refresh_slow();
        } catch {
            // The stream notices what is wrong, and says so.
        }
        await sleep(store.state.connection === "live" && !store.state.status.pid ? 200 : SLOW_MS);
    }
}

let retry_now = () => {};

export async function run() {
    run_slow();
    for (;;) {
        try {
            const access = await ask("GET", "/v1/access");
            const status = await ask("GET", "/v1/status");
            const started = status.started_unix_ms;
            // Events are numbered anew by each process.
            if (started !== store.state.status.started_unix_ms) update({ events: [] });
            update({ access, needs_token: false, status, kind: status.io === undefined ? "allocator" : "node" });
            await (store.state.kind === "node" ? follow_node() : follow_allocator());
        } catch (error) {
            const is_refused = error instanceof Refused && (error.status === 401 || error.status === 403);
            if (is_refused) {
                update({ needs_token: true, connection: "lost", problem: token.get() ? error.message : "" });
                token.set("");
            } else if (!stream?.signal.aborted) {
                update({ connection: "lost", problem: error.message });
            }
        }
        await new Promise((done) => {
            retry_now = done;
            if (!store.state.needs_token) setTimeout(done, RETRY_MS);
        });
    }
}

// Signs in with a token, or out with "".
export function sign_in(text) {
    token.set(text);
    stream?.abort();
    const { kind } = store.state;
    store.state = { ...initial(), kind };
    store.samples.clear();
    changed();
    retry_now();
}

const OPERATOR = new Set(["operator"]);
export const may_operate = () => OPERATOR.has(store.state.access.role);
export const may_cancel = () => ["operator", "submitter", "agent"].includes(store.state.access.role);
