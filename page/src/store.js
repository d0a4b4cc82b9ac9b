// What the page knows of the daemon. Views read `store.state` and are drawn again, once per frame at most, after it
// changes.

import { ask, begin_session, can_be_sent, read_events, Refused, token } from "./api.js";

const STATUS_MS = 1000;
const SLOW_MS = 3000;
const RETRY_MS = 1000;
const EVENTS_MAX = 300;
const SAMPLES_S = 3600;

let sessions = 0;

const initial = () => ({
    session: ++sessions, // changes when the user signs in or out
    kind: "", // "allocator" or "node", once it is known
    connection: "connecting", // "live", "lost", "refused"
    problem: "",
    needs_token: false,
    token_problem: "",
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
    gpu_nodes: [],
    history: [],
    tasks: new Map(), // by the dataset that is being warmed
    whys: new Map(), // by the number of the submitted job
});

export const store = {
    state: initial(),
    draw: () => {},
    watched: { job: "", samples: [] }, // the job whose page is open, and its rates since then
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

export const is_visible = () => document.visibilityState === "visible";

// --- the daemon's clock

let ahead_ms = 0; // of this machine's clock

export const now_ms = () => Date.now() + ahead_ms;

async function ask_status(signal) {
    const sent_ms = Date.now();
    const status = await ask("GET", "/v1/status", undefined, { signal });
    ahead_ms = status.unix_time_ms === undefined ? 0 : status.unix_time_ms - (sent_ms + Date.now()) / 2;
    return status;
}

// --- rates of the job that is shown

export function watch_job(job) {
    if (store.watched.job !== job) store.watched = { job, samples: [] };
}

function note_sample(jobs) {
    const { job: name, samples } = store.watched;
    const job = jobs.find((each) => each.name === name && each.running);
    const unix_s = now_ms() / 1000;
    if (!job || unix_s <= samples.at(-1)?.[0]) return;
    samples.push([
        unix_s,
        job.measured_bytes_per_second ?? null,
        job.predicted_bytes_per_second,
        job.ideal_bytes_per_second,
        job.bandwidth_bytes_per_second,
    ]);
    while (samples[0][0] < unix_s - SAMPLES_S) samples.shift();
}

// --- following the daemon

async function follow_allocator(signal) {
    const seen = store.state.events.at(-1)?.number ?? 0;
    await read_events(`/v1/events/stream?after=${seen}&status_ms=${STATUS_MS}`, signal, (kind, data) => {
        if (signal.aborted) return;
        if (kind !== "status") {
            const events = store.state.events.filter((event) => event.number < data.number);
            events.push(data);
            return update({ events: events.slice(-EVENTS_MAX) });
        }
        note_sample(data.jobs);
        const is_first = store.state.connection !== "live";
        update({ ...data, connection: "live", problem: "" });
        if (is_first) refresh_slow().catch(() => {}); // the stream notices what is wrong, and says so
    });
    throw new Error("the daemon ended the stream");
}

async function follow_node(signal) {
    for (;;) {
        const [status, datasets, jobs] = await Promise.all([
            ask_status(signal),
            ask("GET", "/v1/datasets", undefined, { signal }),
            ask("GET", "/v1/jobs", undefined, { signal }),
        ]);
        update({ status, datasets: datasets.datasets, jobs: jobs.jobs, connection: "live", problem: "" });
        await pause(STATUS_MS);
        signal.throwIfAborted();
    }
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// What the stream does not have.
export async function refresh_slow() {
    const state = store.state;
    if (state.kind !== "allocator" || state.needs_token || state.connection !== "live") return;
    const status = await ask_status();
    const change = { status, runs_jobs: status.policy !== undefined };
    if (change.runs_jobs) {
        const [queue, history, tenants, gpu_nodes] = await Promise.all([
            ask("GET", "/v1/queue"),
            ask("GET", "/v1/history?limit=200"),
            ask("GET", "/v1/tenants"),
            ask("GET", "/v1/gpu-nodes"),
        ]);
        Object.assign(change, { queue: queue.jobs, policy: queue.policy, history: history.jobs, tenants: tenants.tenants, gpu_nodes: gpu_nodes.nodes });
    }
    update(change);
}

async function run_slow() {
    for (;;) {
        await sleep(SLOW_MS);
        try {
            if (is_visible()) await refresh_slow();
        } catch {
            // The stream notices what is wrong, and says so.
        }
    }
}

let connection = new AbortController(); // aborted when the user signs in or out, or the tab is hidden
let go_on = () => {};

function pause(ms) {
    return new Promise((done) => {
        go_on = done;
        if (ms !== undefined) setTimeout(done, ms);
    });
}

function take_failure(error) {
    if (!(error instanceof Refused)) return update({ connection: "lost", problem: error.message });
    if (error.status !== 401 && error.status !== 403) return update({ connection: "refused", problem: error.message });
    update({ needs_token: true, connection: "refused", token_problem: token.get() ? error.message : "" });
    token.set("");
}

// A hidden tab keeps no connection: browsers open few to one daemon.
function on_visibility() {
    if (!is_visible()) connection.abort();
    else if (!store.state.needs_token) go_on();
}

export async function run() {
    run_slow();
    document.addEventListener("visibilitychange", on_visibility);
    for (;;) {
        while (!is_visible()) await pause();
        connection = new AbortController();
        const { signal } = connection;
        try {
            const access = await ask("GET", "/v1/access", undefined, { signal });
            const status = await ask_status(signal);
            const started = status.started_unix_ms;
            // Events are numbered anew by each process.
            if (started !== store.state.status.started_unix_ms) update({ events: [] });
            update({ access, needs_token: false, token_problem: "", status, kind: status.io === undefined ? "allocator" : "node" });
            await (store.state.kind === "node" ? follow_node(signal) : follow_allocator(signal));
        } catch (error) {
            if (signal.aborted) update({ connection: "connecting" });
            else take_failure(error);
        }
        if (store.state.needs_token) await pause();
        else await pause(signal.aborted ? 0 : RETRY_MS);
    }
}

// Signs in with a token, or out with "".
export function sign_in(text) {
    if (text && !can_be_sent(text)) {
        return update({ token_problem: "A token has only letters, digits and - . _ ~ + / =, and no blank." });
    }
    begin_session(text);
    connection.abort();
    const { kind } = store.state;
    store.state = { ...initial(), kind };
    store.watched = { job: store.watched.job, samples: [] };
    changed();
    go_on();
}

export const may_operate = () => store.state.access.role === "operator";
export const may_cancel_own = () => ["operator", "submitter", "agent"].includes(store.state.access.role);
export function may_cancel(job) {
    const { name, role } = store.state.access;
    if (role === "operator") return true;
    return may_cancel_own() && (job.submitter === name || (role === "agent" && job.engine_parameters !== undefined));
}
export const may_predict = () => ["viewer", "job", "submitter", "operator"].includes(store.state.access.role);
