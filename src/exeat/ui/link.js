// The way to the server. The token comes with the link, behind the #, which browsers send nowhere. It is kept for this
// tab only, and goes out in a header, which no other page can make a browser send.

const KEPT = "exeat-token";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function takeToken() {
  const given = location.hash.slice(1);
  history.replaceState(null, "", "/");
  if (given.startsWith("open=")) {
    const said = await post("/api/open", { ticket: given.slice("open=".length) });
    sessionStorage.setItem(KEPT, said.token);
  } else if (/^[\w-]{43}$/.test(given)) {
    sessionStorage.setItem(KEPT, given);
  }
  return sessionStorage.getItem(KEPT) !== null;
}

function headers() {
  const token = sessionStorage.getItem(KEPT);
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

async function fail(answer) {
  let message = answer.statusText;
  try {
    message = (await answer.json()).error ?? message;
  } catch {
    // not one of ours; the status says enough
  }
  throw new Refused(answer.status, message);
}

const SETTINGS = { credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer" };

export async function post(path, asked) {
  const answer = await fetch(path, {
    ...SETTINGS,
    method: "POST",
    headers: { ...headers(), "Content-Type": "application/json" },
    body: JSON.stringify(asked),
  });
  return answer.ok ? answer.json() : fail(answer);
}

// Messages as they come, until the server ends it or `signal` does.
export async function* live(sandbox, signal) {
  const query = sandbox === null ? "" : `?sandbox=${encodeURIComponent(sandbox)}`;
  const answer = await fetch(`/api/live${query}`, { ...SETTINGS, headers: headers(), signal });
  if (!answer.ok) await fail(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}
