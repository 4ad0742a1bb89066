// The rows that are kept, and the list of them, newest first.

import { arrange, bytes, clock, count, foreign, make, place, reason, shown } from "./text.js";

const MAX_KEPT = 5000;
const MAX_SHOWN = 300;

export class Decisions {
  constructor(onChange) {
    this.rows = []; // oldest first
    this.open = new Map(); // requests whose end is still to come
    this.onChange = onChange;
    this.held = null; // what is shown while it is paused
    this.body = document.getElementById("decision-rows");
    this.empty = document.getElementById("decisions-empty");
    this.counted = document.getElementById("decision-count");
    this.filter = document.getElementById("decision-filter");
    this.pause = document.getElementById("pause");
    this.filter.addEventListener("input", () => this.render());
    this.filter.addEventListener("submit", (event) => event.preventDefault());
    this.pause.addEventListener("click", () => this.setPaused(this.held === null));
  }

  setPaused(paused) {
    this.held = paused ? [...this.rows] : null;
    this.pause.setAttribute("aria-pressed", String(paused));
    this.render();
  }

  clear() {
    this.rows = [];
    this.open.clear();
    this.setPaused(false);
  }

  add(rows, first) {
    if (first) {
      this.rows = [];
      this.open.clear();
    }
    for (const row of rows) this.take(row);
    if (this.rows.length > MAX_KEPT) this.rows.splice(0, this.rows.length - MAX_KEPT);
    this.render();
    this.onChange(first);
  }

  take(row) {
    const begun = row.request && this.open.get(row.request);
    if (row.request && row.ended) this.open.delete(row.request);
    if (begun && row.ended && begun.host === row.host) {
      Object.assign(begun, row, { time: begun.time, node: null });
      return;
    }
    if (row.request && !row.ended) {
      this.open.set(row.request, row);
      if (this.open.size > MAX_KEPT) this.open.delete(this.open.keys().next().value);
    }
    this.rows.push(row);
  }

  render() {
    const verdict = this.filter.elements.verdict.value;
    const text = this.filter.elements.text.value.trim().toLowerCase();
    const all = this.held ?? this.rows;
    const found = [];
    let matching = 0;
    for (let at = all.length - 1; at >= 0; at -= 1) {
      if (!matches(all[at], verdict, text)) continue;
      matching += 1;
      if (found.length < MAX_SHOWN) found.push((all[at].node ??= draw(all[at])));
    }
    arrange(this.body, found);
    this.empty.hidden = found.length > 0;
    this.empty.textContent = all.length ? "Nothing here fits the filter." : "Nothing has been decided yet. What a command asks for shows up here.";
    const waiting = this.held === null ? 0 : this.rows.length - this.held.length;
    this.counted.textContent =
      `${count(matching, "row")}${matching > MAX_SHOWN ? `, the newest ${MAX_SHOWN} are shown` : ""}` +
      (this.held === null ? "" : ` · paused${waiting > 0 ? `, ${waiting} more since` : ""}`);
  }
}

function matches(row, verdict, text) {
  if (verdict !== "all" && (row.said !== undefined || row.allowed !== (verdict === "allowed"))) return false;
  if (!text) return true;
  row.searched ??= (row.said ?? `${row.method} ${row.host}:${row.port} ${row.rule} ${row.reason}`).toLowerCase();
  return row.searched.includes(text);
}

function cell(className, ...inside) {
  const element = make("td", className, ...inside);
  element.setAttribute("role", "cell");
  return element;
}

function draw(row) {
  const line = make("tr", row.said !== undefined ? "said" : row.allowed ? "" : "blocked-row");
  line.setAttribute("role", "row");
  if (row.said !== undefined) {
    const said = cell("why", row.said);
    said.colSpan = 5;
    line.append(cell("time", clock(row.time)), said);
    return line;
  }
  const failed = row.allowed && row.ended && row.reason && row.reason !== "allowed";
  const why = cell("why", row.allowed ? foreign("code", "", row.rule) : foreign("span", "", reason(row)));
  if (failed) why.append(make("span", "quiet", ` ${reason(row)}`));
  line.append(
    cell("time", clock(row.time)),
    cell("verdict", row.allowed ? "allowed" : "blocked"),
    cell("method", foreign("span", "", row.method)),
    cell("host", place(row.host, row.port)),
    why,
    cell("bytes number", row.allowed ? (row.ended ? bytes(row.sent + row.received) : "…") : ""),
  );
  if (row.note) why.title = shown(row.note);
  return line;
}
