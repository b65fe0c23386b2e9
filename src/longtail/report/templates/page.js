"use strict";
// The plots are Vega's; this file draws them and connects the page's own, keyboard-friendly controls.
const $ = (id) => document.getElementById(id);
const plots = {}; // id of the element -> Vega's view
const NARROW = matchMedia("(max-width: 40rem)").matches;
const PAGE = NARROW ? 15 : 25;

function element(tag, text, attributes = {}) {
  const e = document.createElement(tag);
  if (text !== null) e.textContent = text; // names are data, never markup
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

function number(v) {
  if (v === null || v === undefined || Number.isNaN(v)) return "-";
  if (Number.isInteger(v)) return v.toLocaleString("en");
  const size = Math.abs(v);
  return size >= 1e5 || size < 1e-4 ? v.toExponential(2) : v.toFixed(size >= 10 ? 2 : 4);
}

// Theme

// Colours that are dark on a dark page have a lighter twin there.
const LIGHTER = {"#0072B2": "#4FA9E8", "#6A3D9A": "#B591E5", "#A6192E": "#F27A88", "#8C6D31": "#CDA85F",
                 "#777777": "#B0B0B0", "#D55E00": "#F0883E"};

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

$("theme").addEventListener("click", async () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("longtail-theme", theme); } catch (e) { /* pages opened from disk may have no storage */ }
  setTheme(theme);
  await drawPlots();
});

// Plots

let tables = {};

function rows(columns) {
  const keys = Object.keys(columns);
  return (columns[keys[0]] ?? []).map((_, i) => Object.fromEntries(keys.map((key) => [key, columns[key][i]])));
}

async function drawPlots() {
  const style = getComputedStyle(document.documentElement);
  const fore = style.getPropertyValue("--soft").trim(), line = style.getPropertyValue("--line").trim();
  const dark = document.documentElement.dataset.theme === "dark";
  const axis = {labelColor: fore, titleColor: fore, domainColor: fore, tickColor: fore, gridColor: line, titleFontWeight: 400};
  const config = {axis, legend: {labelColor: fore, titleColor: fore}, view: {stroke: line}, font: "system-ui, sans-serif"};
  let text = $("specs").textContent;
  if (dark) for (const [from, to] of Object.entries(LIGHTER)) text = text.replaceAll(from, to);
  for (const [id, spec] of Object.entries(JSON.parse(text))) {
    const {data_names: names, ...chart} = spec;
    chart.datasets = Object.fromEntries(names.map((name) => [name, rows(tables[name])]));
    chart.autosize = {type: "fit-x", contains: "padding"};
    if (NARROW) narrow(chart);
    plots[id]?.finalize();
    // Without `ast` Vega makes functions of texts, which the page's policy forbids: it would stay empty.
    const {view} = await vegaEmbed($(id), chart, {ast: true, actions: false, renderer: "canvas", config});
    plots[id] = view;
  }
}

// A legend of two columns is wider than a phone.
function narrow(node) {
  for (const value of Object.values(node ?? {})) {
    if (value && typeof value === "object") {
      if (value.legend?.columns) value.legend = {...value.legend, columns: 1, labelLimit: 240};
      narrow(value);
    }
  }
}

// One metric at a time, in the table of results and in the statistics

function showMetric(metric) {
  document.querySelectorAll(".switch button").forEach((button) =>
    button.setAttribute("aria-pressed", String(button.dataset.metric === metric)));
  const parts = [...document.querySelectorAll(".metric, tr[data-metric]")];
  const rows = parts.filter((part) => part.tagName === "TR");
  const known = rows.some((row) => row.dataset.metric === metric);
  for (const part of parts)
    if (part.tagName !== "TR" || known) part.hidden = part.dataset.metric !== metric;
}

// A link to something folded opens it

function unfold() {
  const target = location.hash.length > 1 && $(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
}

function connect() {
  document.querySelectorAll(".switch button").forEach((button) =>
    button.addEventListener("click", () => showMetric(button.dataset.metric)));
  window.addEventListener("hashchange", unfold);
  document.querySelectorAll('a[href="#checks"]').forEach((link) =>
    link.addEventListener("click", () => { $("checks").open = true; }));
  unfold();
}

// Tasks

async function unpack() {
  const bytes = Uint8Array.from(atob($("data").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function options(select, data) {
  data.units.forEach((unit, i) => select.append(element("option", unit.name, {value: i})));
}

function taskTable(data) {
  const columns = [
    ["name", "Task"], ["place", "Place"], ["train", "Training"], ["test", "Test"],
    ["own", "When learned"], ["best", "Best"], ["last", "Final"], ["change", "Final minus learned"],
  ];
  let sort = "place", up = true, page = 0, rows = [], names = [];
  const unit = () => data.units[Number($("unit").value)];
  const column = (key) => {
    const u = unit(), t = data.tasks[u.tasks];
    if (key === "name") return t.names;
    if (key === "place") return (i) => i + 1;
    if (key === "train" || key === "test") return t[key] || (() => null);
    if (key === "change") return (i) => u.last[i] === null || u.own[i] === null ? null : u.last[i] - u.own[i];
    return u[key];
  };
  const at = (values, i) => typeof values === "function" ? values(i) : values[i];

  function refresh() {
    const t = data.tasks[unit().tasks], wanted = $("search").value.trim().toLowerCase();
    if (names !== t.names) { names = t.names; t.lower ??= names.map((n) => n.toLowerCase()); }
    rows = [];
    for (let i = 0; i < names.length; i++) if (!wanted || t.lower[i].includes(wanted)) rows.push(i);
    const values = column(sort), sign = up ? 1 : -1;
    rows.sort((a, b) => {
      const x = at(values, a), y = at(values, b);
      if (x === null || y === null) return (x === null) - (y === null) || a - b; // no number comes last
      return x < y ? -sign : x > y ? sign : a - b;
    });
    page = 0;
    draw();
  }

  function draw() {
    const body = $("tasks-body"), last = Math.max(0, Math.ceil(rows.length / PAGE) - 1);
    page = Math.min(Math.max(page, 0), last);
    const shown = columns.map(([key]) => column(key));
    body.replaceChildren(...rows.slice(page * PAGE, (page + 1) * PAGE).map((i) => {
      const tr = element("tr", null);
      shown.forEach((values, c) => {
        const v = at(values, i);
        tr.append(c ? element("td", number(v), [1, 3, 5].includes(c) ? {class: "wide"} : {}) : element("th", v, {scope: "row"}));
      });
      return tr;
    }));
    const from = rows.length ? page * PAGE + 1 : 0, to = Math.min(rows.length, (page + 1) * PAGE);
    $("tasks-count").textContent = rows.length === names.length
      ? `${from}-${to} of ${rows.length.toLocaleString("en")} tasks`
      : `${from}-${to} of ${rows.length.toLocaleString("en")} that match, ${names.length.toLocaleString("en")} tasks in all`;
    $("previous").disabled = page === 0;
    $("next").disabled = page === last;
  }

  const head = $("tasks-head");
  columns.forEach(([key, text], c) => {
    const th = element("th", null, {scope: "col", class: c === 0 ? "text" : [1, 3, 5].includes(c) ? "wide" : ""});
    const button = element("button", text, {type: "button", "data-sort": key});
    button.addEventListener("click", () => {
      up = sort === key ? !up : key === "name" || key === "place";
      sort = key;
      mark();
      refresh();
    });
    th.append(button);
    head.append(th);
  });
  function mark() {
    head.querySelectorAll("button").forEach((button, c) => {
      const chosen = button.dataset.sort === sort;
      button.textContent = columns[c][1] + (chosen ? (up ? " ▲" : " ▼") : "");
      button.parentElement.setAttribute("aria-sort", chosen ? (up ? "ascending" : "descending") : "none");
    });
  }
  options($("unit"), data);
  $("unit").addEventListener("change", refresh);
  $("search").addEventListener("input", refresh);
  $("previous").addEventListener("click", () => { page--; draw(); });
  $("next").addEventListener("click", () => { page++; draw(); });
  mark();
  refresh();
}

(async () => {
  setTheme(document.documentElement.dataset.theme);
  connect();
  if (typeof DecompressionStream === "undefined") {
    if ($("unit")) $("tasks-count").textContent = "This browser cannot unpack scores by task; a newer one can.";
  } else {
    const data = await unpack();
    tables = data.figures;
    if ($("unit")) taskTable(data);
    await drawPlots();
  }
  document.documentElement.dataset.ready = "yes";
})();
