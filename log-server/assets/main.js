// Requests the live activity from the log-server once a second, and displays it.

import { heat, lines } from "./charts.js";
import { bytes, count, time } from "./numbers.js";
import { has, health, isText, show } from "./tables.js";
import { start, stop } from "./tail.js";

const EVERY = 1000;
const VIEWS = ["overview", "nodes", "jobs", "processes", "files", "operations", "tail"];
// A node whose watermark lags by more than this is marked, nanoseconds.
const PATIENCE = 5e9;

const at = (id) => document.getElementById(id);
let view = "overview";
let sort = { key: "requests", ascending: false };
let latest;
// A pointer button is held: an element that is replaced before the release would not be clicked.
let isPressed = false;

function put(id, value, text, isBad = false) {
  const place = at(id);
  place.textContent = text;
  place.dataset.value = value;
  place.classList.toggle("bad", isBad);
}

function cluster({ snapshot }, seconds) {
  const all = snapshot.cluster;
  const unit = seconds ? "/s" : "";
  const per = seconds || 1;
  put("requests", all.requests, count(all.requests / per) + unit);
  put("read", all.bytes_read, bytes(all.bytes_read / per) + unit);
  put("written", all.bytes_written, bytes(all.bytes_written / per) + unit);
  put("failed", all.failed, count(all.failed / per) + unit);
  put("p50", all.p50, time(all.p50));
  put("p99", all.p99, time(all.p99));
  put("max", all.max, time(all.max));
  const lost = snapshot.losses.reduce((sum, loss) => sum + loss.count, 0);
  put("events", snapshot.events, count(snapshot.events));
  put("lost", lost, count(lost), lost > 0);
}

function state({ status, snapshot }) {
  const { server, nodes } = status;
  const connected = nodes.filter((node) => node.connected).length;
  const text = [`${connected} of ${nodes.length} nodes connected`, `merge ${time(server.merge_lag_ns)} behind`];
  if (!server.durable) text.push(`the trace cannot be written: ${server.failure}`);
  if (snapshot.skipped > 0) text.push(`${count(snapshot.skipped)} events arrived too fast and are not counted here`);
  at("state").textContent = text.join(" · ");
  at("state").classList.toggle("bad", !server.durable || connected < nodes.length);
}

function overview({ snapshot, history }, seconds) {
  lines(at("operations-chart"), history, [{ values: history.requests, name: "--read" }], count);
  const both = [{ values: history.bytes_read, name: "--read" }, { values: history.bytes_written, name: "--written" }];
  lines(at("bytes-chart"), history, both, bytes);
  heat(at("heat"), history);
  for (const kind of ["files", "jobs", "nodes"]) {
    const rows = snapshot[kind].rows.slice(0, 8);
    show(at(`top-${kind}`), kind, rows, { seconds, sort: { key: "requests" }, brief: true });
  }
}

function table({ snapshot, status }, seconds) {
  const group = snapshot[view];
  const wanted = at("filter").value.toLowerCase();
  const fits = (row) => [row.name, row.node, row.job].some((text) => text?.toLowerCase().includes(wanted));
  const rows = wanted === "" ? group.rows : group.rows.filter(fits);
  const onSort = (key) => {
    sort = { key, ascending: sort.key === key ? !sort.ascending : isText(key) };
    draw();
  };
  show(at("rows"), view, rows, { seconds, sort, onSort });
  at("others").textContent = group.others > 0 ? `${count(group.others)} requests in further rows` : "";
  at("health-box").hidden = view !== "nodes";
  if (view === "nodes") health(at("health"), status.nodes, PATIENCE);
}

function draw() {
  if (!latest) return;
  const seconds = at("window").value === "all" ? 0 : latest.snapshot.seconds;
  state(latest);
  cluster(latest, seconds);
  if (view === "overview") overview(latest, seconds);
  else if (view !== "tail") table(latest, seconds);
}

async function ask() {
  const [step, steps] = at("range").value.split(":");
  const wanted = new URLSearchParams({ window: at("window").value, top: view === "overview" ? 10 : 100, step, steps });
  const answer = await fetch(`/api/watch?${wanted}`, { signal: AbortSignal.timeout(10_000) });
  if (!answer.ok) throw new Error(await answer.text());
  latest = await answer.json();
  if (!isPressed) draw();
}

let asking = 0;
async function again() {
  clearTimeout(asking);
  try {
    if (!document.hidden) await ask();
  } catch (error) {
    at("state").textContent = `no answer: ${error.message}`;
    at("state").classList.add("bad");
  }
  clearTimeout(asking);
  asking = setTimeout(again, EVERY);
}

function go() {
  const wanted = location.hash.slice(1);
  view = VIEWS.includes(wanted) ? wanted : "overview";
  document.querySelectorAll("nav a").forEach((link) => {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  at("overview").hidden = view !== "overview";
  at("tail").hidden = view !== "tail";
  at("table").hidden = view === "overview" || view === "tail";
  if (!at("table").hidden && !has(view, sort.key)) {
    sort = { key: "requests", ascending: false };
  }
  if (view === "tail") start();
  else stop();
  draw();
  again();
}

addEventListener("hashchange", go);
addEventListener("resize", draw);
addEventListener("pointerdown", () => (isPressed = true));
for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => (isPressed = false));
document.addEventListener("visibilitychange", () => document.hidden || again());
for (const id of ["window", "range"]) at(id).addEventListener("change", again);
at("filter").addEventListener("input", draw);
// The window can be bookmarked.
const wanted = new URLSearchParams(location.search).get("window");
if (["1", "10", "60", "all"].includes(wanted)) at("window").value = wanted;
go();
