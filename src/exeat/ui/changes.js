// What commands changed outside their project, and how. Paths and contents are theirs: text, never markup.

import { Refused, post } from "./link.js";
import { arrange, button, bytes, count, foreign, make, shown } from "./text.js";

const WORDS = { added: "Added", changed: "Changed", removed: "Removed" };

export class Changes {
  constructor(sandbox) {
    this.sandbox = sandbox;
    this.section = document.getElementById("changes");
    this.body = document.getElementById("change-rows");
    this.sum = document.getElementById("change-sum");
    this.hint = document.getElementById("change-hint");
    this.layers = "";
    document.getElementById("compare-again").addEventListener("click", () => this.load());
  }

  clear() {
    this.layers = "";
    this.section.hidden = true;
    this.body.replaceChildren();
  }

  // The list is long to make, so it is asked for only when a run has added to the layers, or someone wants it.
  update(layers) {
    const now = layers.join();
    if (now === this.layers) return;
    this.layers = now;
    if (layers.length) this.load();
    else this.clear();
  }

  async load() {
    const sandbox = this.sandbox();
    this.section.hidden = false;
    this.sum.textContent = "Comparing …";
    try {
      const said = await post("/api/files", { sandbox });
      if (sandbox === this.sandbox()) this.render(sandbox, said);
    } catch (error) {
      this.sum.textContent = error instanceof Refused ? shown(error.message) : "exeat ui does not answer.";
    }
  }

  render(sandbox, { rows, row_count: all, totals }) {
    const { added, changed, removed } = totals;
    const more = all > rows.length ? ` The first ${rows.length} of ${all} lines are shown.` : "";
    this.sum.textContent = `${added} added, ${changed} changed, ${removed} removed (${bytes(totals.bytes)}).${more}`;
    this.hint.replaceChildren(
      "None of it is on this machine. ", make("code", "", `exeat files apply --name ${sandbox} PATH`),
      " copies it there, ", make("code", "", `exeat files discard --name ${sandbox} PATH`), " forgets it.",
    );
    arrange(this.body, rows.map((row) => this.draw(row)));
  }

  draw(row) {
    const path = make("td", "path", foreign("span", "", row.path));
    const notes = [row.files === null ? "" : count(row.files, "file"), row.note].filter(Boolean);
    if (notes.length) path.append(make("span", "more", notes.join(" · ")));
    const sizes = [row.size_before, row.size].filter((size) => size !== null).map(bytes);
    const press = make("td", "press");
    const node = make("tr", row.kind, make("td", "kind", WORDS[row.kind]), path, make("td", "number", sizes.join(" → ")), press);
    node.setAttribute("role", "row");
    for (const cell of node.children) cell.setAttribute("role", "cell");
    if (!row.path.endsWith("/")) press.append(this.opener(row, path));
    return node;
  }

  opener(row, cell) {
    const open = button("Show", async () => {
      const there = cell.querySelector("pre");
      open.setAttribute("aria-expanded", String(!there));
      if (there) return there.remove();
      const box = make("pre", "difference", "…");
      box.tabIndex = 0;
      cell.append(box);
      try {
        const said = await post("/api/files/text", { sandbox: this.sandbox(), path: row.path });
        if (said.why) box.replaceChildren(`Not shown: ${shown(said.why)}`);
        else box.replaceChildren(...said.lines.map(drawLine));
      } catch (error) {
        box.textContent = error instanceof Refused ? shown(error.message) : "exeat ui does not answer.";
      }
    });
    open.setAttribute("aria-expanded", "false");
    open.setAttribute("aria-label", `Show how ${shown(row.path)} differs`);
    return open;
  }
}

function drawLine(line) {
  const kind = line.startsWith("+") ? "more-line" : line.startsWith("-") ? "less-line" : "";
  // A tab is all that may stay as it is: it moves nothing but what follows it.
  return make("span", `foreign ${kind}`, ...line.split("\t").flatMap((part, at) => (at ? [document.createTextNode("\t"), part] : [part])), document.createTextNode("\n"));
}
