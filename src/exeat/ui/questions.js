// Questions that wait for an answer. They lie above the page, so that nothing moves when one comes, and a button that has
// just come or moved does nothing for a moment: no click that was meant for something else may be an answer.

import { Refused, post } from "./link.js";
import { arrange, button, count, foreign, make, place, shown } from "./text.js";

const STILL_MS = 700;
const GONE_MS = 6000;
const MAX_GONE = 20; // that are kept, also while someone points at them

const key = (question) => `${question.sandbox}/${question.id}/${question.host}:${question.port}`;

export class Questions {
  constructor(onCount) {
    this.onCount = onCount;
    this.section = document.getElementById("questions");
    this.list = document.getElementById("question-list");
    this.entries = new Map();
    setInterval(() => this.tick(), 250);
    this.section.addEventListener("focusin", (event) => event.target.scrollIntoView({ block: "nearest" }));
  }

  clear() {
    this.entries.clear();
    this.arrange();
  }

  update(questions) {
    const now = performance.now();
    const heard = [];
    for (const question of questions) {
      let entry = this.entries.get(key(question));
      if (!entry) {
        entry = this.draw(question);
        this.entries.set(key(question), entry);
        heard.push(`${shown(question.host)}, port ${question.port}`);
      }
      entry.until = now + question.left_s * 1000;
      entry.waiting.textContent = question.waiting > 1 ? `${count(question.waiting, "connection")} wait` : "";
    }
    const ids = new Set(questions.map(key));
    for (const [id, entry] of this.entries) if (!ids.has(id)) this.end(entry, "");
    const gone = [...this.entries.keys()].filter((id) => this.entries.get(id).gone);
    for (const id of gone.slice(0, -MAX_GONE)) this.entries.delete(id);
    this.arrange();
    if (heard.length) document.getElementById("heard-now").textContent = `May it be reached? ${heard.join("; ")}`;
    this.onCount(questions.length);
  }

  draw(question) {
    const entry = { asked: question, gone: 0, top: null, until: 0 };
    entry.left = make("span", "left");
    entry.waiting = make("span", "");
    entry.result = make("p", "result");
    entry.result.setAttribute("role", "status");
    const answer = (allow, always) => () => this.answer(entry, allow, always);
    entry.buttons = [
      button("Allow once", answer(true, false), question.inside ? "" : "main"),
      button("Allow always", answer(true, true)),
      button("No", answer(false, false)),
      button("Never", answer(false, true)),
    ];
    const titles = [
      "until this command ends",
      `adds ${question.rule} to the list`,
      "until this command ends",
      `adds !${question.rule} to the list`,
    ];
    entry.buttons.forEach((each, at) => {
      each.title = titles[at];
      each.setAttribute("aria-label", `${each.textContent}: ${shown(question.host)}, port ${question.port}`);
    });
    entry.row = make("div", "buttons", ...entry.buttons);
    const rule = make("p", "more", "Always adds the rule ", make("code", "", question.rule), ", never adds ", make("code", "", `!${question.rule}`), ". ", entry.waiting);
    entry.node = make("li", "", entry.left, make("p", "host", place(question.host, question.port)));
    entry.node.append(make("p", "more by", `in ${question.sandbox}, by `, foreign("code", "", question.command)));
    entry.node.append(rule);
    if (question.inside) entry.node.append(make("p", "warn", "This address is not on the public internet: it is on this machine or in your network."));
    entry.node.append(entry.row, entry.result);
    return entry;
  }

  async answer(entry, allow, always) {
    this.still(entry, Infinity);
    try {
      const said = await post("/api/answer", { sandbox: entry.asked.sandbox, id: entry.asked.id, allow, always });
      this.end(entry, said.said.map(shown).join("\n"));
    } catch (error) {
      entry.result.classList.add("bad");
      entry.result.textContent = error instanceof Refused ? error.message : "exeat ui does not answer.";
      this.still(entry, performance.now() + STILL_MS);
    }
  }

  end(entry, said) {
    if (said) entry.result.textContent = said;
    if (entry.gone) return;
    entry.gone = performance.now();
    if (entry.row.contains(document.activeElement)) this.section.focus();
    entry.row.remove();
    entry.node.classList.add("gone");
    entry.left.textContent = "";
    if (!said && !entry.result.textContent) entry.result.textContent = "Answered elsewhere, or no longer needed.";
  }

  still(entry, until) {
    entry.still = until;
    for (const each of entry.buttons) each.setAttribute("aria-disabled", "true");
  }

  tick() {
    const now = performance.now();
    const isHeld = this.section.matches(":hover, :focus-within");
    let changed = false;
    for (const [id, entry] of this.entries) {
      if (entry.gone) {
        if (now > entry.gone + GONE_MS && !isHeld) changed = this.entries.delete(id) || changed;
        continue;
      }
      const left = Math.max(0, Math.ceil((entry.until - now) / 1000));
      entry.left.textContent = `${left} s left`;
      if (entry.still && now > entry.still) {
        entry.still = 0;
        for (const each of entry.buttons) each.removeAttribute("aria-disabled");
      }
    }
    if (changed) this.arrange();
  }

  // The newest on top: the list hangs on its lower end, so that those which are there stay where they are.
  arrange() {
    const entries = [...this.entries.values()].reverse();
    arrange(this.list, entries.map((entry) => entry.node));
    this.section.hidden = entries.length === 0;
    document.documentElement.style.setProperty("--dock", entries.length ? `${this.section.offsetHeight + 32}px` : "0px");
    for (const entry of entries) {
      const top = Math.round(entry.node.getBoundingClientRect().top);
      if (top !== entry.top && !entry.gone) this.still(entry, performance.now() + STILL_MS);
      entry.top = top;
    }
  }
}
