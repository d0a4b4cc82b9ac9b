// A line chart of rates over time, in the page's colours.

import { Component } from "preact";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import * as format from "./format.js";
import { html } from "./html.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

// props: label, data (columns as uPlot takes them), lines ([name, CSS variable, dashes])
export class Chart extends Component {
    componentDidMount() {
        this.resize = new ResizeObserver(() => this.plot?.setSize(this.size()));
        this.resize.observe(this.element);
        dark.addEventListener("change", this.make);
        this.make();
    }

    componentWillUnmount() {
        this.resize.disconnect();
        dark.removeEventListener("change", this.make);
        this.plot?.destroy();
    }

    componentDidUpdate() {
        this.plot?.setData(this.props.data);
    }

    size = () => ({ width: Math.max(240, this.element.clientWidth), height: 240 });

    make = () => {
        this.plot?.destroy();
        const style = getComputedStyle(document.documentElement);
        const colour = (name) => style.getPropertyValue(name).trim();
        const font = `11px ${getComputedStyle(document.body).fontFamily}`;
        const axis = { stroke: colour("--muted"), font, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, space: 90 };
        const options = {
            ...this.size(),
            padding: [10, 10, 0, 0],
            cursor: { y: false },
            scales: { y: { range: (_, least, most) => [0, Math.max(1, most * 1.08)] } },
            axes: [{ ...axis, values: (_, ticks) => ticks.map(format.clock) }, { ...axis, size: 76, space: 40, values: (_, ticks) => ticks.map((tick) => format.rate(tick)) }],
            series: [
                { label: "Time", value: (_, at) => (at === null ? "–" : format.clock(at)) },
                ...this.props.lines.map(([label, variable, dash]) => ({
                    label,
                    stroke: colour(variable),
                    width: 1.75,
                    dash,
                    points: { show: false },
                    value: (_, value) => (value === null ? "–" : format.rate(value)),
                })),
            ],
        };
        this.plot = new uPlot(options, this.props.data, this.element);
    };

    render({ label }) {
        return html`<div class="chart" role="img" aria-label=${label} ref=${(element) => (this.element = element)}></div>`;
    }
}
