// Charts on canvases: lines over time, and a heat map of latencies.

import { clock, time } from "./numbers.js";

const LEFT = 64;
const BOTTOM = 18;

const resolved = (canvas, name) => {
  canvas.style.color = `var(${name})`;
  return getComputedStyle(canvas).color;
};

function prepared(canvas) {
  const scale = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = resolved(canvas, "--soft");
  return { context, width, height, plot: { width: Math.max(width - LEFT - 4, 1), height: Math.max(height - BOTTOM - 8, 1) } };
}

function times(context, history, steps, plot, height) {
  for (const share of [0, 0.5, 1]) {
    const at = history.begin + share * steps * history.step;
    context.textAlign = ["left", "center", "right"][share * 2];
    context.fillText(clock(at * 1e9).slice(0, 8), LEFT + share * plot.width, height - 4);
  }
}

/**
 * Draws lines of values per step, divided by the step length; the peak of the last line is the
 * scale.
 */
export function lines(canvas, history, series, write) {
  const { context, height, plot } = prepared(canvas);
  const steps = series[0].values.length;
  const peak = Math.max(1e-9, ...series.flatMap(({ values }) => values)) / history.step;
  context.textAlign = "right";
  for (const share of [0, 0.5, 1]) {
    const y = 8 + (1 - share) * plot.height;
    context.fillText(write(share * peak), LEFT - 6, y + 4);
    context.fillRect(LEFT, y, plot.width, 0.25);
  }
  times(context, history, steps, plot, height);
  for (const { values, name } of series) {
    context.beginPath();
    values.forEach((value, step) => {
      context.lineTo(LEFT + ((step + 0.5) / steps) * plot.width, 8 + (1 - value / history.step / peak) * plot.height);
    });
    context.strokeStyle = resolved(canvas, name);
    context.lineWidth = 1.5;
    context.stroke();
  }
}

/**
 * Draws the number of requests by latency: rows are powers of two, columns are steps; darker is
 * more, on a logarithmic scale.
 */
export function heat(canvas, history) {
  const { context, height, plot } = prepared(canvas);
  const columns = history.latencies;
  const used = columns.filter((rows) => rows.length > 0);
  const first = Math.min(...used.map((rows) => rows.findIndex((n) => n > 0)), 29);
  const last = Math.max(...used.map((rows) => rows.length), first + 4);
  const most = Math.log1p(Math.max(1, ...used.flat()));
  const [cellWidth, cellHeight] = [plot.width / columns.length, plot.height / (last - first)];
  context.textAlign = "right";
  for (let row = first; row < last; row += Math.ceil((last - first) / 8)) {
    const y = 8 + plot.height - (row - first) * cellHeight;
    context.fillText(time(row === 0 ? 0 : history.first_row * 2 ** (row - 1)), LEFT - 6, y + 4);
  }
  times(context, history, columns.length, plot, height);
  context.fillStyle = resolved(canvas, "--read");
  columns.forEach((rows, step) => {
    rows.forEach((n, row) => {
      if (n === 0) return;
      context.globalAlpha = 0.12 + 0.88 * (Math.log1p(n) / most);
      context.fillRect(LEFT + step * cellWidth, 8 + plot.height - (row - first + 1) * cellHeight, cellWidth + 0.3, cellHeight);
    });
  });
  context.globalAlpha = 1;
}

