// Tables of rows, sorted by any column.

import { bytes, count, time } from "./numbers.js";

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Key, title, format of a value, and whether the value is a sum that is shown as a rate.
const COLUMNS = {
  node: ["Node", String],
  pid: ["PID", String],
  job: ["Job", String],
  requests: ["Ops", count, true],
  failed: ["Failed", count, true],
  bytes_read: ["Read", bytes, true],
  bytes_written: ["Written", bytes, true],
  p50: ["p50", time],
  p99: ["p99", time],
  max: ["Longest", time],
  lost: ["Lost", count],
  name: ["", String],
};
const NUMBERS = ["requests", "failed", "bytes_read", "bytes_written", "p50", "p99", "max"];
const VIEWS = {
  nodes: [...NUMBERS, "lost", "name"],
  jobs: [...NUMBERS, "lost", "name"],
  processes: ["node", "pid", "job", ...NUMBERS, "lost", "name"],
  files: ["node", ...NUMBERS, "name"],
  operations: [...NUMBERS, "name"],
};
const BRIEF = ["requests", "bytes_read", "bytes_written", "p99", "name"];
const NAMES = { nodes: "Node", jobs: "Job", processes: "Command", files: "File", operations: "Operation" };
const TEXTS = new Set(["node", "job", "name"]);

function cell(key, row, seconds, view) {
  const [, write, isSum] = COLUMNS[key];
  const value = row[key];
  const td = element("td");
  td.dataset.column = key;
  if (TEXTS.has(key)) {
    td.className = key === "name" ? (view === "files" ? "text name path" : "text name") : "text";
    const text = value || (key === "name" ? (view === "jobs" ? "(no job)" : "(unknown)") : "");
    td.append(key === "name" ? element("bdi", { textContent: text }) : text);
    td.title = text;
    return td;
  }
  td.dataset.value = value ?? "";
  const nothing = value === null || value === undefined || (value === 0 && key !== "requests");
  if (nothing) td.textContent = "–";
  else td.textContent = write(isSum && seconds ? value / seconds : value) + (isSum && seconds ? "/s" : "");
  if (key === "requests" && row.missed > 0) td.textContent = `~${td.textContent}`;
  if (key === "lost" && value > 0) td.className = "bad";
  return td;
}

function ordered(rows, sort) {
  const sign = sort.ascending ? 1 : -1;
  const compare = (a, b) => {
    const [x, y] = [a[sort.key] ?? "", b[sort.key] ?? ""];
    const order = TEXTS.has(sort.key) ? String(x).localeCompare(String(y)) : x - y;
    return sign * order || b.requests - a.requests;
  };
  return [...rows].sort(compare);
}

/** Fills `place` with rows; sums are divided by `seconds`; `onSort` is called with a column. */
export function show(place, view, rows, { seconds, sort, onSort, brief }) {
  const keys = brief ? BRIEF : VIEWS[view];
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const heads = keys.map((key) => {
    const title = key === "name" ? NAMES[view] : COLUMNS[key][0];
    const th = element("th", { className: TEXTS.has(key) ? "text" : "", scope: "col" });
    if (onSort) {
      const button = element("button", { type: "button", textContent: title, onclick: () => onSort(key) });
      button.dataset.key = key;
      th.append(button);
      if (sort.key === key) th.setAttribute("aria-sort", sort.ascending ? "ascending" : "descending");
    } else th.textContent = title;
    return th;
  });
  const lines = ordered(rows, sort).map((row) => {
    const tr = element("tr", {}, ...keys.map((key) => cell(key, row, seconds, view)));
    tr.dataset.name = row.name;
    return tr;
  });
  if (lines.length === 0) lines.push(element("tr", {}, element("td", { className: "text", colSpan: keys.length, textContent: "nothing" })));
  place.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines)));
  if (focused) place.querySelector(`[data-key="${focused}"]`)?.focus();
}

export const isText = (key) => TEXTS.has(key);
export const has = (view, key) => VIEWS[view].includes(key);

/** Fills the table of the health of all nodes. */
export function health(place, nodes, patience) {
  const titles = ["Node", "Connected", "Behind", "Lost", "Clock ±", "Spool", "In flight", "Oldest", "Version"];
  const head = titles.map((title, at) => element("th", { textContent: title, scope: "col", className: at === 0 || at === 8 ? "text" : "" }));
  const lines = nodes.map((node) => {
    const lost = Object.entries(node.losses).filter(([where]) => where !== "filtered").reduce((sum, [, n]) => sum + n, 0);
    const report = node.report;
    const oldest = report?.oldest?.[0];
    const lag = node.lag_ns;
    const cells = [
      [node.node, false],
      [node.connected ? "yes" : "no", !node.connected],
      [lag === null ? "–" : time(lag), lag > patience],
      [count(lost), lost > 0],
      [node.clock ? time(node.clock.uncertainty_ns) : "–", false],
      [report ? `${bytes(report.spool.bytes)} of ${bytes(report.spool.limit)}` : "–", Boolean(report?.spool.full)],
      [report ? count(report.in_flight) : "–", false],
      [oldest ? `${time(oldest.age_ns)} ${oldest.op}` : "–", oldest ? oldest.age_ns > 1e10 : false],
      [report?.version ?? "–", false],
    ];
    const tds = cells.map(([text, bad], at) => element("td", { textContent: text, className: `${at === 0 || at === 8 ? "text " : ""}${bad ? "bad" : ""}` }));
    const tr = element("tr", {}, ...tds);
    tr.dataset.node = node.node;
    return tr;
  });
  place.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...lines)));
}
