// Rows summed up by host: what was blocked, with a way to allow it, and how many bytes went where.

import { Refused, post } from "./link.js";
import { arrange, button, bytes, count, foreign, make, outcome, place, reason } from "./text.js";

const MAX_BLOCKED = 100;
const MAX_BARS = 12;

export class Blocked {
  constructor(sandbox) {
    this.sandbox = sandbox;
    this.list = document.getElementById("blocked");
    this.empty = document.getElementById("blocked-empty");
    this.entries = new Map(); // by host and port
    this.order = [];
  }

  clear() {
    this.entries.clear();
    this.order = [];
    this.render([]);
  }

  render(rows) {
    const counts = new Map();
    for (const row of rows) {
      if (row.said !== undefined || row.allowed) continue;
      const key = `${row.port} ${row.host}`;
      const known = counts.get(key);
      counts.set(key, { row, count: (known?.count ?? 0) + 1 });
    }
    // Nothing moves under a hand: while it is pointed at, what is new goes to the end.
    const isHeld = this.list.matches(":hover, :focus-within") || this.list.querySelector(".panel");
    const kept = isHeld ? this.order : [];
    const others = [...counts.keys()].filter((key) => !kept.includes(key));
    others.sort((one, other) => counts.get(other).count - counts.get(one).count);
    this.order = [...kept, ...others].slice(0, Math.max(MAX_BLOCKED, kept.length));
    for (const key of this.entries.keys()) if (!this.order.includes(key)) this.entries.delete(key);
    arrange(this.list, this.order.map((key) => this.entry(key, counts.get(key))));
    this.empty.hidden = this.order.length > 0;
  }

  entry(key, found) {
    let entry = this.entries.get(key);
    if (!entry) {
      entry = drawBlocked(found.row, this.sandbox);
      this.entries.set(key, entry);
    }
    if (found) entry.update(found);
    return entry.node;
  }
}

function drawBlocked(row, sandbox) {
  const counted = make("span", "count");
  const why = make("span", "");
  const more = make("span", "more", counted, " · ", why);
  const adds = make("span", "more");
  const host = make("span", "host", place(row.host, row.port));
  const line = make("div", "line", make("div", "", host, more));
  const node = make("li", "", line, adds);
  let offered = null;

  const update = ({ row: last, count: number }) => {
    counted.textContent = `${number.toLocaleString("en")}×`;
    why.textContent = reason(last);
    if (last.offers.length && offered === null) {
      offered = button("Allow …", () => openPanel(last));
      offered.setAttribute("aria-expanded", "false");
      offered.setAttribute("aria-label", `Allow ${last.host}, port ${last.port} …`);
      line.append(offered);
    } else if (!last.offers.length && offered !== null) {
      offered.remove();
      offered = null;
    }
    adds.replaceChildren(...(last.offers.length ? ["would add ", make("code", "", last.offers[0])] : []));
  };

  const openPanel = (last) => {
    if (node.querySelector(".panel")) return closePanel();
    const panel = allowPanel(last, sandbox, closePanel);
    node.append(panel);
    offered.setAttribute("aria-expanded", "true");
    panel.querySelector("input, button").focus();
  };
  const closePanel = () => {
    node.querySelector(".panel")?.remove();
    offered?.setAttribute("aria-expanded", "false");
    offered?.focus();
  };
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && node.querySelector(".panel")) closePanel();
  });
  return { node, update };
}

// Shows the rule as it will stand in the list. What is sent is what is shown.
function allowPanel(row, sandbox, onClose) {
  const group = `offer-${row.port}-${row.host}`;
  const fields = make("fieldset", "", make("legend", "", "Add this rule to the list:"));
  row.offers.forEach((rule, at) => {
    const input = make("input");
    Object.assign(input, { type: "radio", name: group, value: rule, checked: at === 0 });
    fields.append(make("label", "", input, make("span", "", make("code", "", rule), at === 0 ? " this host only" : " with its subdomains")));
  });
  const result = make("p", "result");
  result.setAttribute("role", "status");
  const panel = make("div", "panel", fields);
  if (row.inside) panel.append(make("p", "warn", "This address is not on the public internet: it is on this machine or in your network."));
  const chosen = () => fields.querySelector("input:checked").value;
  const add = button("", async () => {
    add.setAttribute("aria-disabled", "true");
    const said = await change("/api/allow", { sandbox: sandbox(), rule: chosen(), exactly: true }, result);
    if (said) {
      fields.remove();
      add.remove();
      cancel.textContent = "Close";
      cancel.focus();
    } else add.removeAttribute("aria-disabled");
  }, "main");
  const name = () => add.replaceChildren("Add ", make("code", "", chosen()));
  fields.addEventListener("change", name);
  name();
  const cancel = button("Cancel", onClose);
  panel.append(make("div", "buttons", add, cancel), result);
  return panel;
}

// Ask for a change and say what came of it. True if it was made.
export async function change(path, asked, result) {
  result.classList.remove("bad");
  result.textContent = "…";
  try {
    const said = await post(path, asked);
    result.textContent = outcome(said);
    result.classList.toggle("bad", Boolean((said.still ?? []).length || (said.failed ?? []).length));
    return true;
  } catch (error) {
    result.classList.add("bad");
    result.textContent = error instanceof Refused ? error.message : "exeat ui does not answer.";
    return false;
  }
}

export class Bars {
  constructor() {
    this.table = document.getElementById("bytes");
    this.body = document.getElementById("byte-rows");
    this.empty = document.getElementById("bytes-empty");
    this.lines = new Map();
  }

  render(rows) {
    const sums = new Map();
    for (const row of rows) {
      if (row.said !== undefined || !row.allowed || !row.ended) continue;
      const sum = sums.get(row.host) ?? { host: row.host, sent: 0, received: 0, requests: 0 };
      sum.sent += row.sent;
      sum.received += row.received;
      sum.requests += 1;
      sums.set(row.host, sum);
    }
    const total = (sum) => sum.sent + sum.received;
    const sorted = [...sums.values()].sort((one, other) => total(other) - total(one));
    const shownSums = sorted.slice(0, MAX_BARS);
    const rest = sorted.slice(MAX_BARS);
    const most = Math.max(1, ...shownSums.map(total));
    const lines = shownSums.map((sum) => this.line(sum.host, sum, total(sum) / most));
    if (rest.length) {
      const others = { sent: 0, received: 0, requests: 0 };
      for (const sum of rest) for (const key of Object.keys(others)) others[key] += sum[key];
      lines.push(this.line("", { ...others, host: count(rest.length, "other host") }, 0));
    }
    arrange(this.body, lines);
    this.table.hidden = lines.length === 0;
    this.empty.hidden = lines.length > 0;
  }

  line(key, sum, share) {
    let line = this.lines.get(key);
    if (!line) {
      const bar = make("span", "bar");
      bar.setAttribute("aria-hidden", "true");
      line = { name: foreign("span", "", ""), bar, received: make("td", "number"), sent: make("td", "number") };
      const head = make("td", key ? "host" : "host quiet", line.name, key ? bar : "");
      line.node = make("tr", "", head, line.received, line.sent);
      this.lines.set(key, line);
      if (this.lines.size > 1000) this.lines.clear();
    }
    if (line.name.textContent === "" || !key) line.name.replaceWith((line.name = foreign("span", "", sum.host)));
    line.bar.style.width = `${Math.max(1, Math.round(share * 100))}%`;
    line.node.title = count(sum.requests, "request");
    line.received.textContent = bytes(sum.received);
    line.sent.textContent = bytes(sum.sent);
    return line.node;
  }
}
