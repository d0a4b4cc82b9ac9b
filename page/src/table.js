// A table that draws only the rows in view. Rows keep their order while values change: a column of numbers is sorted
// once, when its header is chosen; rows that come later are added at the end.

import { Component } from "preact";
import { html } from "./html.js";

const ROW_PX = 34;
const ROWS_SHOWN = 14;
const ROWS_AROUND = 6;

const is_missing = (value) => value === undefined || value === null || Number.isNaN(value);

function compare(a, b) {
    if (a === b) return 0;
    return a < b ? -1 : 1;
}

// Missing values come last in both orders.
function compare_values(a, b, sign) {
    if (is_missing(a) || is_missing(b)) return is_missing(a) - is_missing(b);
    return sign * compare(a, b);
}

// props: label, rows, row_key (row -> text), columns, empty, search (row -> text; none: no filter), on_window(rows in view)
// A column: name, title, value (row -> for sorting), cell (row -> content), numeric, wide (left out on narrow screens),
// stable (values do not change), descends (its first order is from the greatest; so is that of numbers)
export class Table extends Component {
    state = { sort: 0, descending: Boolean(this.props.columns[0].descends), first: 0, filter: "" };
    order = [];

    sort_by = (column) => {
        const { sort, descending } = this.state;
        const { numeric, descends } = this.props.columns[column];
        this.order = [];
        this.setState({ sort: column, descending: sort === column ? !descending : Boolean(numeric || descends) });
    };

    // Scrolling draws often, and the rows are the same then.
    ordered() {
        const { rows } = this.props;
        const { sort, descending, filter } = this.state;
        const asked = [rows, sort, descending, filter];
        if (!this.asked || asked.some((each, at) => each !== this.asked[at])) {
            this.asked = asked;
            this.answer = this.order_rows();
        }
        return this.answer;
    }

    order_rows() {
        const { rows, columns, search } = this.props;
        const { sort, descending, filter } = this.state;
        const wanted = filter.toLowerCase();
        const shown = wanted && search ? rows.filter((row) => search(row).toLowerCase().includes(wanted)) : rows;
        const by_key = new Map(shown.map((row) => [this.props.row_key(row), row]));
        const column = columns[sort];
        if (column.stable || this.order.length === 0) {
            const sign = descending ? -1 : 1;
            this.order = [...by_key.keys()].sort((a, b) => {
                const [left, right] = [column.value(by_key.get(a)), column.value(by_key.get(b))];
                return compare_values(left, right, sign) || compare(a, b);
            });
        } else {
            const kept = this.order.filter((key) => by_key.has(key));
            const known = new Set(kept);
            this.order = kept.concat([...by_key.keys()].filter((key) => !known.has(key)));
        }
        return this.order.map((key) => by_key.get(key));
    }

    on_scroll = (event) => {
        const first = Math.max(0, Math.floor(event.currentTarget.scrollTop / ROW_PX) - ROWS_AROUND);
        if (first !== this.state.first) this.setState({ first });
    };

    header(column, index) {
        const { sort, descending } = this.state;
        const is_sorted = sort === index;
        return html`<th
            scope="col"
            key=${column.name}
            class=${classes(column)}
            aria-sort=${is_sorted ? (descending ? "descending" : "ascending") : undefined}
        >
            ${column.value
                ? html`<button type="button" title=${column.title ?? ""} onClick=${() => this.sort_by(index)}>
                      ${column.name}<span class="arrow" aria-hidden="true">${is_sorted ? (descending ? "↓" : "↑") : ""}</span>
                  </button>`
                : column.name}
        </th>`;
    }

    render({ label, rows, columns, empty, search, on_window }) {
        if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
        const ordered = this.ordered();
        const first = Math.min(this.state.first, Math.max(0, ordered.length - ROWS_SHOWN - 2 * ROWS_AROUND));
        const shown = ordered.slice(first, first + ROWS_SHOWN + 2 * ROWS_AROUND);
        if (on_window) on_window(shown);
        const below = ordered.length - first - shown.length;
        const filler = (count) => html`<tr class="filler" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${count * ROW_PX}px` }}></td></tr>`;
        return html`
            ${search && (rows.length > ROWS_SHOWN || this.state.filter)
                ? html`<input
                      class="filter"
                      type="search"
                      placeholder=${`Filter ${rows.length} rows`}
                      aria-label=${`Filter: ${label}`}
                      value=${this.state.filter}
                      onInput=${(event) => {
                          this.order = [];
                          this.setState({ filter: event.currentTarget.value });
                      }}
                  />`
                : null}
            <div class="scroll" tabindex="0" role="region" aria-label=${label} onScroll=${this.on_scroll}>
                <table aria-label=${label} aria-rowcount=${ordered.length + 1}>
                    <thead><tr aria-rowindex="1">${columns.map((column, index) => this.header(column, index))}</tr></thead>
                    <tbody>
                        ${first > 0 ? filler(first) : null}
                        ${shown.map(
                            (row, index) => html`<tr key=${this.props.row_key(row)} aria-rowindex=${first + index + 2}>
                                ${columns.map(
                                    (column, at) =>
                                        html`<${at === 0 ? "th" : "td"} scope=${at === 0 ? "row" : undefined} class=${classes(column)}>${column.cell(row)}</>`,
                                )}
                            </tr>`,
                        )}
                        ${below > 0 ? filler(below) : null}
                    </tbody>
                </table>
            </div>
        `;
    }
}

function classes(column) {
    return [column.numeric ? "num" : "", column.wide ? "wide" : "", column.grow ? "grow" : ""].filter(Boolean).join(" ") || undefined;
}
