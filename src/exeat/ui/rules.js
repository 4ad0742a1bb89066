// The list of a sandbox, with a way to take each rule back and to add one.

import { change } from "./hosts.js";
import { arrange, button, count, make, shown } from "./text.js";

const MAX_SHOWN = 300;

export class Rules {
  constructor(sandbox) {
    this.sandbox = sandbox;
    this.list = document.getElementById("rule-list");
    this.empty = document.getElementById("rules-empty");
    this.more = document.getElementById("rules-more");
    this.title = document.getElementById("rules-title");
    this.result = document.getElementById("rule-result");
    this.lines = new Map();
    this.state = { rules: [], rule_count: 0 };
    this.form = document.getElementById("add-rule");
    this.form.addEventListener("input", () => this.render(this.state));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.add();
    });
  }

  async add() {
    const field = this.form.elements.rule;
    if (await change("/api/allow", { sandbox: this.sandbox(), rule: field.value, exactly: false }, this.result)) {
      field.value = "";
      this.render(this.state);
    }
  }

  clear() {
    this.result.textContent = "";
    this.lines.clear();
    this.form.reset();
  }

  // What was added last stands first. What is being typed narrows the list: one sees what is there already.
  render(state) {
    this.state = state;
    const { rules, rule_count: total } = state;
    const wanted = this.form.elements.rule.value.trim().replace(/^=/, "").toLowerCase();
    const fitting = rules.filter((rule) => rule.text.includes(wanted));
    const lines = new Map();
    for (const rule of fitting.slice(-MAX_SHOWN).reverse()) {
      if (!lines.has(rule.text)) lines.set(rule.text, this.lines.get(rule.text) ?? this.draw(rule));
    }
    this.lines = lines;
    arrange(this.list, [...lines.values()]);
    this.title.textContent = total ? `Rules (${total.toLocaleString("en")})` : "Rules";
    this.empty.hidden = total > 0;
    const hidden = total - lines.size;
    this.more.textContent = hidden <= 0 ? "" : wanted ? `${count(hidden, "rule")} without “${shown(wanted)}”` : `and ${count(hidden, "older rule")}: exeat proxy list shows all`;
  }

  draw(rule) {
    const verb = rule.deny ? "Remove" : "Block";
    const line = make("div", "line", make("code", "host", rule.text));
    const node = make("li", rule.deny ? "deny" : "", line);
    const close = () => {
      node.querySelector(".panel")?.remove();
      open.setAttribute("aria-expanded", "false");
      open.focus();
    };
    const open = button(`${verb} …`, () => {
      if (node.querySelector(".panel")) return close();
      const panel = this.panel(rule, verb, close);
      node.append(panel);
      open.setAttribute("aria-expanded", "true");
      panel.querySelector("button").focus();
    });
    open.setAttribute("aria-label", `${verb} ${rule.text} …`);
    open.setAttribute("aria-expanded", "false");
    line.append(open);
    node.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && node.querySelector(".panel")) close();
    });
    return node;
  }

  panel(rule, verb, close) {
    const what = rule.deny
      ? "The denial is removed from the list. Anything that other rules allow is allowed again."
      : "The rule is removed from the list, and a denial is added if a wider rule would still allow it. Connections that are no longer allowed are closed.";
    const go = button(`${verb} it`, async () => {
      go.setAttribute("aria-disabled", "true");
      const path = rule.deny ? "/api/remove" : "/api/block";
      if (await change(path, { sandbox: this.sandbox(), rule: rule.text }, this.result)) {
        node.remove();
        this.form.elements.rule.focus();
      } else go.removeAttribute("aria-disabled");
    }, "main");
    const node = make("div", "panel", make("p", "", what), make("div", "buttons", go, button("Cancel", close)));
    return node;
  }
}
