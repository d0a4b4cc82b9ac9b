// Texts of values, in the units of the `larder` command.

const SIZES = [
    [1e15, "PB"],
    [1e12, "TB"],
    [1e9, "GB"],
    [1e6, "MB"],
    [1e3, "kB"],
];

export function bytes(value) {
    if (value === undefined || value === null || !Number.isFinite(value)) return "–";
    for (const [size, unit] of SIZES) {
        if (Math.abs(value) >= size * 0.9995) {
            const scaled = value / size;
            return `${scaled.toFixed(Math.abs(scaled) >= 99.95 ? 0 : Math.abs(scaled) >= 9.995 ? 1 : 2)} ${unit}`;
        }
    }
    return `${Math.round(value)} B`;
}

export function rate(value) {
    const text = bytes(value);
    return text === "–" ? text : `${text}/s`;
}

export function percent(value) {
    if (value === undefined || value === null || !Number.isFinite(value)) return "–";
    return `${(value * 100).toFixed(1)} %`;
}

export function change(before, after) {
    if (!(before > 0) || !Number.isFinite(after)) return "–";
    const part = after / before - 1;
    if (Math.abs(part) < 0.0005) return "±0 %";
    return `${part > 0 ? "+" : "−"}${Math.abs(part * 100).toFixed(1)} %`;
}

export function duration(seconds) {
    if (seconds === undefined || seconds === null || !Number.isFinite(seconds)) return "–";
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min`;
    if (whole < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
    return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// A short time.
export function span(ns) {
    for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
        if (ns >= size) return `${(ns / size).toFixed(ns >= 99.95 * size ? 0 : ns >= 9.995 * size ? 1 : 2)} ${unit}`;
    }
    return `${ns} ns`;
}

export function clock(unix_s) {
    if (!Number.isFinite(unix_s)) return "–";
    const at = new Date(unix_s * 1000);
    const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
    if (at.toDateString() === new Date().toDateString()) return time;
    return `${at.toLocaleDateString([], { year: "numeric", month: "2-digit", day: "2-digit" })} ${time}`;
}

export const number = (value) => (Number.isFinite(value) ? String(Math.round(value * 10) / 10) : "–");
