import { Component, render } from "preact";
import "./style.css";
import { Cluster, remote_of, sections } from "./cluster.js";
import * as format from "./format.js";
import { html } from "./html.js";
import { Job } from "./job.js";
import { LimitForm, Node, node_sections } from "./node.js";
import { Bar, Question } from "./parts.js";
import { now_ms, run, sign_in, store, update } from "./store.js";
import { Trace } from "./trace.js";
import { WhatIf } from "./whatif.js";

function Summary({ state }) {
    if (state.kind !== "allocator") return null;
    const running = state.jobs.filter((job) => job.running).length;
    const waiting = state.queue.filter((job) => job.state === "waiting").length;
    const { limit, granted, used } = remote_of(state);
    const alive = state.nodes.filter((node) => node.alive);
    const sum = (what) => alive.reduce((all, node) => all + node[what].memory_bytes + node[what].disk_bytes, 0);
    const tile = (name, value, bar) => html`<div class="tile"><span>${name}</span><b>${value}</b>${bar}</div>`;
    return html`<div class="tiles">
        ${tile("Jobs", html`${running} <small>running${state.runs_jobs ? `, ${waiting} waiting` : ""}</small>`)}
        ${tile("Remote", html`${format.rate(used)} <small>of ${format.rate(limit)}</small>`, html`<${Bar} used=${used} mark=${granted} all=${limit} label=${`${format.rate(used)} used, ${format.rate(granted)} granted`} />`)}
        ${tile("Cache", html`${format.bytes(sum("used"))} <small>of ${format.bytes(sum("capacity"))}</small>`, html`<${Bar} used=${sum("used")} mark=${sum("quota")} all=${sum("capacity")} label="cache used" />`)}
        ${tile("Nodes", html`${alive.length} <small>of ${state.nodes.length} report</small>`)}
        ${tile("Plan", html`${state.plan ?? "–"} <small>up ${format.duration((now_ms() - state.status.started_unix_ms) / 1000)}</small>`)}
    </div>`;
}

function SignIn({ problem }) {
    const submit = (event) => {
        event.preventDefault();
        const text = new FormData(event.currentTarget).get("token").trim();
        if (text) sign_in(text);
    };
    return html`<form class="sign-in" onSubmit=${submit}>
        <h2>This daemon asks for a token</h2>
        <p>Whoever runs the daemon gives tokens: they are in its token file. A token stays in this tab.</p>
        <label>Token <input name="token" type="password" autocomplete="off" required autofocus /></label>
        ${problem ? html`<p class="problem" role="alert">${problem}</p>` : null}
        <button type="submit">Show the page</button>
    </form>`;
}

function Who({ state }) {
    const { name, role } = state.access;
    if (!role) return null;
    const is_anyone = name === "anyone";
    const forget = () => sign_in("");
    return html`<span class="who">${is_anyone ? "read-only" : html`${name} <small>${role}</small>`}
        ${is_anyone
            ? html`<button type="button" class="quiet" onClick=${() => update({ needs_token: true })}>Sign in</button>`
            : html`<button type="button" class="quiet" onClick=${forget}>Sign out</button>`}
    </span>`;
}

const CONNECTIONS = { live: ["good", "live"], lost: ["bad", "no answer"], refused: ["bad", "refused"], connecting: ["wait", "connecting"] };

function Trouble({ state: { connection, problem } }) {
    if (connection !== "lost" && connection !== "refused") return null;
    const text = connection === "lost" ? "The daemon does not answer" : "The daemon refuses to answer";
    return html`<p class="problem" role="alert">${text} (${problem}). This is what it last said; the page tries again each second.</p>`;
}

// The job of an address: by its name, or by the number of a submitted one.
function job_of(hash) {
    const [, kind, text] = /^#\/(job|queue)\/(.+)$/.exec(hash) ?? [];
    if (kind === "queue") return { id: text };
    try {
        return kind && { name: decodeURIComponent(text) };
    } catch {
        return undefined; // not an address of this page
    }
}

class Page extends Component {
    componentDidMount() {
        store.draw = () => this.forceUpdate();
        addEventListener("hashchange", () => {
            if (location.hash.startsWith("#/")) scrollTo(0, 0);
            this.forceUpdate();
        });
    }

    jump = (event, id) => {
        event.preventDefault();
        document.getElementById(`${id}-title`)?.focus({ preventScroll: true });
        document.getElementById(id)?.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    };

    render() {
        const state = store.state;
        const job = job_of(location.hash);
        const is_node = state.kind === "node";
        const [tone, text] = CONNECTIONS[state.connection];
        const links = is_node ? node_sections : sections();
        return html`<header class="top">
                <h1><a href="#/">Larder</a> <small>${is_node ? (state.status.allocator?.node ?? "node") : "cluster"}</small></h1>
                ${state.needs_token || job ? null : html`<nav aria-label="Sections">${links.map(([id, name]) => html`<a href=${`#${id}`} onClick=${(event) => this.jump(event, id)}>${name}</a>`)}</nav>`}
                <${Who} state=${state} />
                <span class=${`connection ${tone}`} role="status" title=${state.problem}>${text}</span>
            </header>
            <main>
                ${state.needs_token
                    ? html`<${SignIn} problem=${state.token_problem} />`
                    : html`<${Trouble} state=${state} />
                          ${state.status.warning ? html`<p class="problem" role="alert">${state.status.warning}</p>` : null}
                          ${state.kind === "" ? html`<p class="empty">Connecting…</p>` : null}
                          ${job && !is_node
                              ? html`<${Job} key=${`${state.session} ${location.hash}`} name=${job.name} id=${job.id} state=${state} />`
                              : html`<${Summary} state=${state} />${is_node ? html`<${Node} state=${state} />` : state.kind ? html`<${Cluster} state=${state} />` : null}`}`}
            </main>
            ${state.whatif ? html`<${WhatIf} key=${state.whatif.dataset ?? ""} dataset=${state.whatif.dataset} />` : null}
            ${state.limit ? html`<${LimitForm} job=${state.limit} />` : null}
            ${state.trace ? html`<${Trace} trace=${state.trace} />` : null}
            ${state.question ? html`<${Question} text=${state.question} />` : null}
            <div class="said" role="status" aria-live="polite">${state.said ? html`<p class=${state.said.tone}>${state.said.text}</p>` : null}</div>`;
    }
}

render(html`<${Page} />`, document.body);
run();
