// The page: which view is shown, and when it is drawn again. It is drawn from the API alone, a moment after each event.

import { follow, get, token } from "./api.js";
import { element, told } from "./dom.js";
import { EventList } from "./events.js";
import { JobsView } from "./jobs.js";

const SETTLE_MS = 200; // events that come together are one drawing
const REDRAW_MS = 5000; // samples are no events
const REST_MS = 1000; // between drawings, however many events come
const FIRST_EVENTS = 50;

const main = document.getElementById("main");
const problem = document.getElementById("problem");
const shown = { view: new JobsView(), events: new EventList("") };
let due = { at: Infinity, timer: 0 }; // when it is drawn next
let drawn = -REST_MS; // when a drawing ended last
let drawing = null; // the view that is being drawn

function jobOfPlace() {
  const found = location.hash.match(/^#\/job\/([^/]+)$/);
  return found ? decodeURIComponent(found[1]).replace("@", "/") : "";
}

function complain(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

async function draw() {
  const view = shown.view;
  due.at = Infinity;
  if (drawing === view) return atOnce();
  drawing = view;
  try {
    const [cluster] = await Promise.all([get("/cluster"), view.update()]);
    const cores = cluster.hosts.reduce((sum, host) => sum + host.cores_used, 0);
    const header = document.getElementById("cluster");
    header.dataset.sequence = cluster.sequence;
    header.replaceChildren(told(cluster.hosts.length), cluster.hosts.length === 1 ? " host, " : " hosts, ", told(cores, cores.toFixed(1)), " cores in use, ", cluster.brain ? "a Brain leads" : "no Brain leads");
    complain("");
  } catch (error) {
    if (view === shown.view) complain(error.message);
  } finally {
    if (drawing === view) drawing = null;
    drawn = performance.now();
  }
}

function soon() {
  drawAt(Math.max(performance.now() + SETTLE_MS, drawn + REST_MS));
}

// What a person did is drawn without a rest; what is due earlier stays so.
function atOnce() {
  drawAt(performance.now() + SETTLE_MS);
}

function drawAt(at) {
  if (at >= due.at) return;
  clearTimeout(due.timer);
  due = { at, timer: setTimeout(draw, at - performance.now()) };
}

async function viewOf(job) {
  if (!job) return new JobsView();
  const { JobView } = await import("./job.js");
  return new JobView(job, atOnce);
}

async function show() {
  const job = jobOfPlace();
  const view = await viewOf(job);
  if (job !== jobOfPlace()) return;
  shown.view.end();
  shown.view = view;
  shown.events = new EventList(job);
  main.replaceChildren(...view.elements, element("h2", {}, "Events"), shown.events.list);
  const drawn = draw();
  const query = job ? `&job=${encodeURIComponent(job)}` : "";
  const past = await get(`/events?count=${FIRST_EVENTS}${query}`).catch(() => []);
  for (const event of past) shown.events.take(event);
  await drawn;
}

async function begin() {
  const field = document.getElementById("token");
  field.value = token();
  document.getElementById("token-form").addEventListener("submit", (event) => event.preventDefault());
  field.addEventListener("change", () => {
    token(field.value.trim());
    atOnce();
  });
  window.addEventListener("hashchange", show);
  let sequence = 0;
  while (!sequence) {
    try {
      sequence = (await get("/cluster")).sequence || -1;
    } catch (error) {
      complain(error.message);
      await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    }
  }
  await show();
  setInterval(soon, REDRAW_MS);
  const take = (event) => {
    shown.events.take(event);
    soon();
  };
  await follow(Math.max(sequence, 0), take, complain, new AbortController().signal);
}

begin();
