// A live list of the latest events.

import { clock, count, time } from "./numbers.js";
import { element } from "./tables.js";

const KEPT = 300;
const place = document.getElementById("tail-rows");
const state = document.getElementById("tail-state");
const form = document.getElementById("tail-form");
const pause = document.getElementById("pause");

const body = element("tbody");
const titles = ["Time", "Node", "PID", "Operation", "Length", "Offset", "Result", "Took", "File"];
const head = titles.map((title) => element("th", { textContent: title, scope: "col", className: ["Time", "Node", "Operation", "File"].includes(title) ? "text" : "" }));
place.append(element("table", {}, element("thead", {}, element("tr", {}, ...head)), body));

let source;
let isPaused = false;
let skipped = 0;

function line(row) {
  const cells = [
    [clock(row.time), "text"], [row.node, "text"], [row.pid, ""], [row.op, "text"], [row.length ?? "", ""], [row.offset ?? "", ""],
    [row.result, row.result < 0 ? "bad" : ""], [time(row.duration), ""], [row.path, "text name"],
  ];
  return element("tr", {}, ...cells.map(([text, className]) => element("td", { textContent: text, className, title: text })));
}

function add(message) {
  skipped += message.skipped;
  body.prepend(...message.rows.reverse().map(line));
  while (body.rows.length > KEPT) body.lastChild.remove();
  state.textContent = skipped > 0 ? `${count(skipped)} events are not shown: use filters to request fewer` : "";
}

export function stop() {
  source?.close();
  source = undefined;
}

export function start() {
  stop();
  if (isPaused) return;
  const wanted = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  const url = `/api/events?${wanted}`;
  source = new EventSource(url);
  state.textContent = "waiting for events …";
  source.onmessage = (message) => add(JSON.parse(message.data));
  source.addEventListener("cut", (message) => {
    stop();
    state.textContent = `the log-server closed the stream: ${JSON.parse(message.data)}`;
  });
  source.onerror = async () => {
    if (source?.readyState === EventSource.CONNECTING) state.textContent = "no connection; trying again …";
    if (source?.readyState !== EventSource.CLOSED) return;
    stop();
    const answer = await fetch(url).catch(() => undefined);
    const reason = answer && !answer.ok ? await answer.text() : "no connection";
    answer?.body?.cancel().catch(() => undefined);
    state.textContent = reason;
  };
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  body.replaceChildren();
  skipped = 0;
  start();
});

pause.addEventListener("click", () => {
  isPaused = !isPaused;
  pause.setAttribute("aria-pressed", String(isPaused));
  pause.textContent = isPaused ? "Continue" : "Pause";
  if (isPaused) stop();
  else start();
});
