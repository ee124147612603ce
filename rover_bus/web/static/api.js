// The JSON API and the stream of events. The token is kept for this tab alone, and travels in a header.

const KEPT = "rover-token";
const AGAIN_MS = 500;

export function token(value) {
  if (value !== undefined) sessionStorage.setItem(KEPT, value);
  return sessionStorage.getItem(KEPT) ?? "";
}

function headers() {
  return token() ? { Authorization: `Bearer ${token()}` } : {};
}

// A stack that was restored from a backup gives sequences and numbers of plans again: all that is shown is drawn from nothing.
let timeline = null;

function note(response) {
  const said = response.headers.get("Rover-Timeline");
  if (timeline !== null && said !== null && said !== timeline) location.reload();
  timeline ??= said;
}

export async function get(path) {
  return (await getAt(path)).body;
}

// The body, and the sequence of the newest fact that it rests on.
export async function getAt(path) {
  const response = await fetch(`/api/v1${path}`, { headers: headers(), cache: "no-store" });
  return { body: await read(response), sequence: response.headers.get("Rover-Sequence") };
}

export async function post(path, body) {
  const about = { "Content-Type": "application/json", "Rover-Timeline": timeline };
  const sent = { method: "POST", headers: { ...headers(), ...about }, body: JSON.stringify(body) };
  return read(await fetch(`/api/v1${path}`, sent));
}

async function read(response) {
  note(response);
  const body = await response.json();
  if (!response.ok) throw new Error(body.message);
  return body;
}

export function inPath(job) {
  return encodeURIComponent(job.replace("/", "@"));
}

// Calls `take` for each event behind `after`, for ever: a stream that breaks is asked again from the last one that came.
export async function follow(after, take, state, signal) {
  let last = after;
  while (!signal.aborted) {
    try {
      const response = await fetch("/api/v1/events/stream", { headers: { ...headers(), "Last-Event-ID": String(last) }, signal });
      if (!response.ok) throw new Error((await response.json()).message);
      note(response);
      state("");
      last = await readStream(response, last, take);
      throw new Error("the connection ended");
    } catch (error) {
      if (signal.aborted) return;
      state(error.message);
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

async function readStream(response, last, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch {
      return last;
    }
    if (piece.done) return last;
    text += piece.value;
    const whole = text.split("\n\n");
    text = whole.pop();
    for (const block of whole) {
      const data = block.split("\n").find((line) => line.startsWith("data: "));
      if (data === undefined) continue;
      const event = JSON.parse(data.slice(6));
      if (event.sequence <= last) continue;
      last = event.sequence;
      take(event);
    }
  }
}
