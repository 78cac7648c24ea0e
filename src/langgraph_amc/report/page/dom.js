/* Elements, numbers and scales that all parts of the page share. Text enters the page as text, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, heard] of Object.entries(value)) element.addEventListener(event, heard);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const known = (value) => value !== null && value !== undefined;

function number(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(2);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(size < 0.001 ? value.toExponential(1) : value.toPrecision(3)));
}

function percent(part) {
  if (!known(part)) return "–";
  const value = 100 * part;
  if (value > 0 && value < 0.1) return "under 0.1 %";
  return `${value < 10 && !Number.isInteger(value) ? value.toFixed(1) : Math.round(value)} %`;
}

function extent(values) {
  const found = values.filter(known);
  if (!found.length) return [0, 1];
  let low = found[0], high = found[0];
  for (const value of found) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return [low, high];
}

/* A few round numbers from low to high. */
function ticks(low, high, most, whole = false) {
  const rough = Math.max((high - low) / Math.max(1, most) || 1, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(Number((k * step).toPrecision(12)));
  return found;
}

function scale([low, high], [from, to]) {
  const width = high - low || 1;
  return (value) => from + ((value - low) / width) * (to - from);
}

/* The width that is there for a chart, and a new drawing when it changes. */
function drawn(draw) {
  const box = html("div", { class: "chart" });
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(box.clientWidth);
    if (!now || Math.abs(now - width) < 2) return;
    width = now;
    box.replaceChildren(draw(width));
  }).observe(box);
  return box;
}

const tip = document.getElementById("tip");

function showTip(event, lines) {
  tip.replaceChildren(...lines.map((line, k) => html(k ? "div" : "strong", {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - width - 8);
  const below = event.clientY + 16;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below + height > window.innerHeight ? event.clientY - height - 10 : below}px`;
}

function hideTip() {
  tip.hidden = true;
}

/* A table, made when it is first asked for. */
function dataTable(columns, rows, label = "Show the numbers") {
  const details = html("details", { class: "data" }, html("summary", {}, label));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(table(columns, rows()));
  });
  return details;
}

function table(columns, rows, strong = []) {
  const marked = new Set(strong);
  const numeric = columns.map((_, k) => rows.every((row) => !known(row[k]) || typeof row[k] === "number"));
  const body = html("tbody");
  const lines = rows.map((row, i) => ({
    row,
    line: html("tr", { class: marked.has(i) ? "strong" : null },
      ...row.map((cell, k) => html(k ? "td" : "th", { class: numeric[k] ? "number" : null, scope: k ? null : "row" },
        typeof cell === "number" ? number(cell) : known(cell) ? String(cell) : ""))),
  }));
  body.append(...lines.map(({ line }) => line));
  const heads = columns.map((name, k) => {
    const head = html("th", { scope: "col", class: numeric[k] ? "number" : null });
    head.append(html("button", { type: "button", title: "Sort", on: { click: () => sort(k) } }, name));
    return head;
  });
  function sort(k) {
    const up = heads[k].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[k].setAttribute("aria-sort", up ? "ascending" : "descending");
    const sign = up ? 1 : -1;
    lines.sort((a, b) => {
      const [x, y] = [a.row[k], b.row[k]];
      if (!known(x) || !known(y)) return Number(!known(x)) - Number(!known(y));
      return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
    });
    body.append(...lines.map(({ line }) => line));
  }
  return html("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    html("table", {}, html("thead", {}, html("tr", {}, ...heads)), body));
}
