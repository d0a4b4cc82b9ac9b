// Requests to the daemon that served the page, with the token that the user gave. The token is kept by this tab only,
// and sent in a header: a page of another host cannot use it.

const TOKEN = "larder-token";

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

export async function ask(method, path, body) {
    const options = { method, headers: headers(), cache: "no-store", credentials: "omit" };
    if (body !== undefined) options.body = JSON.stringify(body);
    const response = await fetch(path, options);
    if (!response.ok) throw await refusal(response);
    return response.json();
}

// Reads server-sent events until the stream ends or `signal` aborts. EventSource cannot send a token.
export async function read_events(path, signal, take) {
    const response = await fetch(path, { headers: headers(), cache: "no-store", credentials: "omit", signal });
    if (!response.ok) throw await refusal(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const pieces = []; // of an event that is not complete
    for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
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
