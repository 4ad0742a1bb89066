// Text for people. Hosts, methods and commands come from programs that no one trusts: they become text nodes, never markup.

// Controls, marks that turn the direction of writing, and other characters that cannot be seen are spelled out.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}]/gu;

export function shown(text) {
  return String(text).replace(UNSEEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
}

// An element with a class and with text or elements in it. There is no way to give it markup.
export function make(tag, className = "", ...inside) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...inside.map((each) => (each instanceof Node ? each : shown(each))));
  return element;
}

// Text that a program chose, kept apart from what stands next to it.
export function foreign(tag, className, text) {
  const element = make(tag, `foreign ${className}`, text);
  element.dir = "ltr";
  return element;
}

export function place(host, port) {
  const element = foreign("span", "", host);
  if (port) element.append(make("span", "port", `:${port}`));
  return element;
}

export function button(label, onPress, className = "") {
  const element = make("button", className, label);
  element.type = "button";
  element.addEventListener("click", () => {
    if (element.getAttribute("aria-disabled") !== "true") onPress(element);
  });
  return element;
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function bytes(count) {
  let unit = 0;
  while (count >= 999.5 && unit < UNITS.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${unit && count < 9.95 ? count.toFixed(1) : Math.round(count)} ${UNITS[unit]}`;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export function clock(stamp) {
  const element = make("time");
  const when = new Date(stamp);
  if (Number.isNaN(when.getTime())) return element;
  element.dateTime = when.toISOString();
  element.title = when.toLocaleString();
  element.textContent = CLOCK.format(when);
  return element;
}

export function day(seconds) {
  return DAY.format(new Date(seconds * 1000));
}

const REASONS = {
  "not-listed": "no rule lists it",
  "address-not-listed": "no rule lists the address",
  "port-not-listed": "no rule lists the port",
  "method-not-listed": "the rule does not list the method",
  "path-not-listed": "the rule does not list the path",
  "needs-interception": "the rule needs interception",
  "private-address": "leads to an address that is not public",
  "own-address": "leads to an address of this machine",
  "denied-by-rule": "denied by",
};

export function reason(row) {
  const words = REASONS[row.reason] ?? row.reason;
  return row.reason === "denied-by-rule" && row.rule ? `${words} ${row.rule}` : words;
}

// What came of a change, in sentences.
export function outcome(said) {
  const lines = [...(said.said ?? []), ...(said.still ?? []).map((each) => `But: ${each}`)];
  if (said.taken) lines.push(`Applied to ${count(said.taken, "running command")}${said.closed ? `; ${count(said.closed, "connection")} closed` : ""}.`);
  else if (said.taken === 0 && !(said.failed ?? []).length) lines.push("No command is running; it applies from the next one on.");
  lines.push(...(said.notes ?? []), ...(said.failed ?? []).map((each) => `Not applied: ${each}`));
  return lines.map(shown).join("\n");
}

// Put these children in, in this order. Those that are there already are not touched: selection and focus stay.
export function arrange(parent, children) {
  let at = parent.firstChild;
  for (const child of children) {
    if (child === at) at = at.nextSibling;
    else parent.insertBefore(child, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
