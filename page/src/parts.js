// Small parts that several views share.

import { ask, is_ended } from "./api.js";
import * as format from "./format.js";
import { html } from "./html.js";
import { now_ms, refresh_slow, store, update } from "./store.js";

export const job_link = (name) => html`<a href=${`#/job/${encodeURIComponent(name)}`}>${name}</a>`;

export const ratio = (part, all) => (all > 0 ? part / all : 0);

// A bar of `used` within `all`, with a mark. The text says the same to whoever cannot see it.
export function Bar({ used, mark, all, tone, label }) {
    const part = (value) => `${all > 0 ? Math.min(100, (100 * Math.max(0, value)) / all) : 0}%`;
    return html`<span class=${`bar ${tone ?? ""}`} role="img" aria-label=${label} title=${label}>
        <span class="fill" style=${{ width: part(used ?? 0) }}></span>
        ${mark === undefined ? null : html`<span class="mark" style=${{ left: part(mark) }}></span>`}
    </span>`;
}

export function Section({ id, title, note, children }) {
    return html`<section id=${id} aria-labelledby=${`${id}-title`}>
        <header><h2 id=${`${id}-title`} tabindex="-1">${title}</h2>${note ? html`<p>${note}</p>` : null}</header>
        ${children}
    </section>`;
}

export const Tag = ({ tone, children }) => html`<span class=${`tag ${tone}`}>${children}</span>`;

const LIMITS = {
    compute: ["good", "its own compute"],
    unpredicted: ["warn", "less than predicted"],
    remote: ["warn", "remote b/(1 − h)"],
    network: ["warn", "network"],
    disk: ["warn", "disk"],
    gpus: ["wait", "waits for GPUs"],
    unknown: ["", "f* not known yet"],
};

export function Limit({ limit }) {
    if (!limit) return "–";
    const [tone, text] = LIMITS[limit.resource] ?? ["", limit.resource];
    const since = now_ms() / 1000 - limit.since_unix_ms / 1000;
    return html`<${Tag} tone=${tone}>${text}${limit.node ? ` of ${limit.node}` : ""}</><small>${format.duration(since)}</small>`;
}

export function say(text, tone = "good") {
    const said = { text, tone };
    update({ said });
    setTimeout(() => store.state.said === said && update({ said: undefined }), 8000);
}

// Asks before it acts, and says what came of it.
export async function act(question, request, done) {
    if (question && !(await confirmed(question))) return false;
    try {
        const answer = await ask(...request);
        say(done);
        refresh_slow().catch(() => {});
        return answer;
    } catch (error) {
        if (!is_ended(error)) say(error.message, "bad");
        return false;
    }
}

let answer_question = () => {};

function confirmed(question) {
    update({ question });
    return new Promise((answer) => {
        answer_question = (yes) => {
            update({ question: undefined });
            answer(yes);
        };
    });
}

export function Question({ text }) {
    return html`<dialog class="question" aria-label=${text} ref=${(dialog) => dialog && !dialog.open && dialog.showModal()}
        onCancel=${() => answer_question(false)}>
        <p>${text}</p>
        <p class="buttons">
            <button type="button" class="quiet" onClick=${() => answer_question(false)}>Keep as it is</button>
            <button type="button" class="danger" onClick=${() => answer_question(true)}>Yes</button>
        </p>
    </dialog>`;
}
