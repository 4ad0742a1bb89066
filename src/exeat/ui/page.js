// The page: which sandbox is looked at, and what the server says about it, put where it belongs.

import { Decisions } from "./decisions.js";
import { Changes } from "./changes.js";
import { Bars, Blocked } from "./hosts.js";
import { Refused, live, takeToken } from "./link.js";
import { Questions } from "./questions.js";
import { Rules } from "./rules.js";
import { arrange, count, day, foreign, make, shown } from "./text.js";

const CHOSEN = "exeat-sandbox";
const SUM_MS = 500;

const at = (id) => document.getElementById(id);
let chosen = sessionStorage.getItem(CHOSEN);
let known = null; // the sandboxes, once they have been told
let under = null; // ends the stream that is under way
let sumTimer = 0;

const sandbox = () => chosen;
const decisions = new Decisions(sumSoon);
const blocked = new Blocked(sandbox);
const bars = new Bars();
const rules = new Rules(sandbox);
const changes = new Changes(sandbox);
const questions = new Questions((number) => {
  document.title = `${number ? `(${number}) ` : ""}${chosen ? `${chosen} · ` : ""}exeat`;
});

function sumSoon(first) {
  if (first) sum();
  else sumTimer ||= setTimeout(sum, SUM_MS);
}

function sum() {
  clearTimeout(sumTimer);
  sumTimer = 0;
  blocked.render(decisions.rows);
  bars.render(decisions.rows);
}

function choose(name) {
  if (name === chosen && under) return;
  chosen = name;
  if (name === null) sessionStorage.removeItem(CHOSEN);
  else sessionStorage.setItem(CHOSEN, name);
  for (const part of [decisions, blocked, rules, changes]) part.clear();
  bars.render([]);
  at("sandbox").hidden = true;
  document.title = `${name ? `${name} · ` : ""}exeat`;
  under?.abort();
}

function takeSandboxes(sandboxes) {
  known = sandboxes;
  at("no-sandbox").hidden = sandboxes.length > 0;
  at("frame").classList.toggle("bare", sandboxes.length === 0);
  const buttons = new Map([...at("sandbox-list").children].map((item) => [item.dataset.name, item]));
  arrange(at("sandbox-list"), sandboxes.map((each) => drawSandbox(each, buttons.get(each.name))));
  const names = sandboxes.map((each) => each.name);
  if (chosen !== null && !names.includes(chosen)) choose(null);
  // The one that is busy is the one that someone wants to see.
  if (chosen === null && names.length) choose((sandboxes.find((each) => each.running) ?? sandboxes[0]).name);
}

function drawSandbox(each, item) {
  if (!item) {
    item = make("li");
    item.dataset.name = each.name;
    const press = make("button");
    press.type = "button";
    press.addEventListener("click", () => choose(each.name));
    item.append(press);
  }
  const lines = [make("span", "name", each.name || "?")];
  if (each.problem) lines.push(make("span", "more asks", each.problem.split("\n")[0]));
  else {
    const state = each.running ? [`${each.running} running`, ...each.jails, ...each.modes].join(" · ") : each.used ? `idle since ${day(each.used)}` : "never used";
    lines.push(make("span", "more", state));
    if (each.running) lines.push(make("span", "more", `${each.allowed} allowed · ${each.denied} blocked`));
    lines.push(make("span", "more", count(each.rules, "rule")));
    if (each.pending) lines.push(make("span", "more asks", count(each.pending, "question")));
  }
  const press = item.firstChild;
  press.replaceChildren(...lines);
  press.setAttribute("aria-current", String(each.name === chosen));
  return item;
}

function takeSandbox(state) {
  at("sandbox").hidden = false;
  at("sandbox-name").textContent = state.name;
  at("sandbox-problem").hidden = !state.problem;
  at("sandbox-problem").textContent = shown(state.problem ?? "").replaceAll("\\u{a}", "\n");
  const running = state.commands.length;
  at("sandbox-state").replaceChildren(running ? `${count(running, "command")} running` : "Nothing is running in it.");
  arrange(at("commands"), state.commands.map(drawCommand));
  rules.render(state);
  changes.update(state.layers);
  for (const item of at("sandbox-list").children) item.firstChild.setAttribute("aria-current", String(item.dataset.name === chosen));
}

function drawCommand(each) {
  const command = foreign("code", "", each.command);
  command.title = shown(each.command);
  const open = count(each.open_connections, "connection");
  const item = make("li", "", command, ` · ${each.jail} · ${each.mode} · ${open} open · ${each.allowed} allowed · ${each.denied} blocked · ${count(each.rules, "rule")}`);
  if (each.other_rules.length) {
    item.append(` · ${count(each.other_rules.length, "rule")} of its own`);
    item.title = each.other_rules.map(shown).join("\n");
  }
  return item;
}

function take(message) {
  if (message.sandboxes) takeSandboxes(message.sandboxes);
  if (message.sandbox && message.sandbox.name === chosen) takeSandbox(message.sandbox);
  if (message.questions) questions.update(message.questions);
  if (message.rows) decisions.add(message.rows, message.first);
}

function close(title, why, canShow = false) {
  at("frame").hidden = true;
  at("closed").hidden = false;
  at("closed").querySelector("h2").textContent = title;
  at("closed-why").textContent = why;
  at("show-here").hidden = !canShow;
  questions.clear();
  setState("", "Not connected");
}

function setState(className, text) {
  const state = at("link-state");
  if (state.textContent !== text) state.textContent = text;
  state.className = `link-state ${className}`;
}

// One stream after the other. Returns when there is no point in another.
async function follow() {
  at("closed").hidden = true;
  at("frame").hidden = false;
  for (let pause = 500; ; pause = Math.min(pause * 2, 4000)) {
    under = new AbortController();
    const { signal } = under;
    try {
      for await (const message of live(chosen, signal)) {
        if (signal.aborted) break;
        pause = 500;
        setState("live", "Live");
        if (message.elsewhere) {
          close("Shown in other tabs", "This page is open in four other tabs, which is as many as it serves at a time.", true);
          return;
        }
        take(message);
      }
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        close("This link is no longer valid", "exeat ui has been started again, or this is another one: open the link that it printed.");
        return;
      }
      if (error instanceof Refused && error.status === 404) choose(null);
      if (!(error instanceof Refused || error instanceof TypeError || signal.aborted)) throw error;
    }
    if (signal.aborted) continue;
    setState("", known ? "Not connected: is exeat ui still running? Trying again …" : "Connecting …");
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function begin() {
  try {
    if (await takeToken()) await follow();
    else close("This page needs its link", "Open the link that exeat ui printed. It holds a new key each time.");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    close("This page needs its link", error.message);
  }
}

at("show-here").addEventListener("click", () => follow());
// A new link in the same tab changes nothing but what stands behind the #.
addEventListener("hashchange", () => {
  if (location.hash.length > 40) location.reload();
});
begin();
