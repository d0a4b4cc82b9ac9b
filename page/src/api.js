// Requests to the daemon that served the page, with the token that the user gave. The token is kept by this tab only,
// and sent in a header: a page of another host cannot use it.

const TOKEN = "larder-token";
export const ANSWER_MS = 10_000;
const SILENCE_MS = 5000; // the stream has a status each second

export class Refused extends Error {
    constructor(status, message) {
        super(message);
        this.status = status;
    }
}

export const token = {
    get: () => sessionStorage.getItem(TOKEN) ?? "",
    set: (text) => (text ? sessionStorage.setItem(TOKEN, text) : sessionStorage.removeItem(TOKEN)),
};

// RFC 6750 allows no other letters. A browser cannot send some of them at all.
export const can_be_sent = (text) => /^[A-Za-z0-9._~+/=-]+$/.test(text);

// What was asked before the user signed in or out ends without an answer, so that nothing of it is shown later.
let session = new AbortController();

export function begin_session(text) {
    token.set(text);
    session.abort();
    session = new AbortController();
}

export const is_ended = (error) => error.name === "AbortError";

function headers() {
    return token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
}

async function refusal(response) {
    let message = `the daemon answers ${response.status}`;
    try {
        message = (await response.json()).error.message;
    } catch {
        // The body is no JSON: the status says enough.
    }
    return new Refused(response.status, message);
}

export async function ask(method, path, body, { signal, patience_ms = ANSWER_MS } = {}) {
    const asked_in = session.signal;
    const signals = [asked_in, AbortSignal.timeout(patience_ms), ...(signal ? [signal] : [])];
    const options = { method, headers: headers(), cache: "no-store", credentials: "omit", signal: AbortSignal.any(signals) };
    if (body !== undefined) options.body = JSON.stringify(body);
    try {
        const response = await fetch(path, options);
        if (!response.ok) throw await refusal(response);
        return await response.json();
    } catch (error) {
        asked_in.throwIfAborted();
        throw error.name === "TimeoutError" ? new Error(`no answer for ${patience_ms / 1000} s`) : error;
    }
}

// Reads server-sent events until the stream ends or is silent, or `signal` aborts. EventSource cannot send a token.
export async function read_events(path, signal, take) {
    const silence = new AbortController();
    let timer = 0;
    const wait = () => {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(new Error(`silent for ${SILENCE_MS / 1000} s`)), SILENCE_MS);
    };
    wait();
    try {
        const options = { headers: headers(), cache: "no-store", credentials: "omit", signal: AbortSignal.any([signal, silence.signal]) };
        const response = await fetch(path, options);
        if (!response.ok) throw await refusal(response);
        await take_events(response.body.pipeThrough(new TextDecoderStream()).getReader(), wait, take);
    } finally {
        clearTimeout(timer);
    }
}

async function take_events(reader, on_bytes, take) {
    const pieces = []; // of an event that is not complete
    for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        on_bytes();
        const events = value.split("\n\n");
        if (events.length === 1 && !value.endsWith("\n")) {
            pieces.push(value);
            continue;
        }
        const joined = (pieces.splice(0).join("") + value).split("\n\n");
        pieces.push(joined.pop());
        for (const text of joined) take_event(text, take);
    }
}

function take_event(text, take) {
    const event = { kind: "message", data: "" };
    for (const line of text.split("\n")) {
        if (line.startsWith("event: ")) event.kind = line.slice(7);
        if (line.startsWith("data: ")) event.data += line.slice(6);
    }
    if (event.data) take(event.kind, JSON.parse(event.data));
}
