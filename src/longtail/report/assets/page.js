"use strict";
// The plots are Bokeh's; this file only connects them to the page's own, keyboard-friendly controls.
const $ = (id) => document.getElementById(id);
const plots = {}; // id of the element -> Bokeh model
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

function colourPlot(plot) {
  const style = getComputedStyle(document.documentElement);
  const fore = style.getPropertyValue("--soft").trim(), line = style.getPropertyValue("--line").trim();
  for (const axis of [...plot.below, ...plot.left, ...plot.right]) {
    for (const key of ["axis_label_text_color", "major_label_text_color", "axis_line_color",
                       "major_tick_line_color", "minor_tick_line_color"])
      if (key in axis.properties) axis[key] = fore;
  }
  for (const item of plot.center) if ("grid_line_color" in item.properties) item.grid_line_color = line;
  for (const renderer of plot.renderers) {
    if (!renderer.glyph) continue;
    const data = renderer.data_source?.data;
    if (data?.colour) renderer.data_source.data = {...data, colour: Array.from(data.colour, shade)};
    for (const key of ["line_color", "fill_color", "text_color"]) {
      if (!(key in renderer.glyph.properties)) continue;
      const now = renderer.glyph[key], colour = now?.value ?? now;
      if (typeof colour === "string" && shaded.has(colour)) renderer.glyph[key] = {value: shade(colour)};
    }
  }
}

// The darkest colours have a lighter twin on a dark page.
const LIGHTER = {"#0072B2": "#4FA9E8", "#6A3D9A": "#B591E5", "#A6192E": "#F27A88", "#8C6D31": "#CDA85F",
                 "#777777": "#B0B0B0", "#D55E00": "#F0883E"};
const shaded = new Set([...Object.keys(LIGHTER), ...Object.values(LIGHTER)]);

function shade(colour) {
  const [dark] = Object.entries(LIGHTER).find((both) => both.includes(colour)) ?? [colour]; // either twin
  return document.documentElement.dataset.theme === "dark" ? LIGHTER[dark] ?? dark : dark;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  Object.values(plots).forEach(colourPlot);
  document.querySelectorAll(".swatch").forEach((s) => { s.style.borderTopColor = shade(s.dataset.colour); });
}

$("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("longtail-theme", theme); } catch (e) { /* as above */ }
  setTheme(theme);
});

// Plots

function zoom(plot, factor) {
  for (const [range, scale] of [[plot.x_range, plot.x_scale], [plot.y_range, plot.y_scale]]) {
    const log = scale.type === "LogScale";
    const [a, b] = log ? [Math.log(range.start), Math.log(range.end)] : [range.start, range.end];
    const middle = (a + b) / 2, half = (b - a) / 2 * factor;
    const ends = [middle - half, middle + half].map((v) => log ? Math.exp(v) : v);
    range.setv({start: ends[0], end: ends[1]});
  }
}

async function drawPlots() {
  const items = JSON.parse($("items").textContent);
  for (const item of items) {
    const view = await Bokeh.embed.embed_item(item);
    const views = Array.isArray(view) ? view : view.roots ?? [view];
    const plot = views[0].model;
    plots[item.target_id] = plot;
    // A finger that drags over a plot wants to scroll the page.
    if (matchMedia("(pointer: coarse)").matches) plot.toolbar.active_drag = null;
    const bar = document.querySelector(`[data-zoom="${item.target_id}"]`);
    const name = bar.dataset.name;
    for (const [text, label, act] of [
      ["+", `Zoom in: ${name}`, () => zoom(plot, 0.6)],
      ["−", `Zoom out: ${name}`, () => zoom(plot, 1 / 0.6)],
      ["reset", `Reset: ${name}`, () => plot.reset.emit()],
    ]) {
      const button = element("button", text, {type: "button", "aria-label": label});
      button.addEventListener("click", act);
      bar.append(button, " ");
    }
  }
}

function showLines() {
  const shown = new Set(), bands = $("bands").checked;
  document.querySelectorAll("#lines input:checked").forEach((box) => shown.add(Number(box.value)));
  for (const plot of Object.values(plots))
    for (const renderer of plot.renderers) {
      const [line, kind] = renderer.tags;
      if (typeof line === "number") renderer.visible = shown.has(line) && (kind !== "band" || bands);
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
  if (NARROW) document.querySelectorAll("details.fold").forEach((fold) => { fold.open = false; });
  if (!$("lines")) return;
  $("bands").addEventListener("change", showLines);
  const boxes = document.querySelectorAll("#lines input");
  boxes.forEach((box) => box.addEventListener("change", showLines));
  document.querySelectorAll("#lines button").forEach((button) => button.addEventListener("click", () => {
    boxes.forEach((box) => { box.checked = button.value === "all"; });
    showLines();
  }));
  const heat = $("heat");
  if (heat) heat.addEventListener("change", () => {
    for (const plot of Object.values(plots))
      for (const renderer of plot.renderers)
        if (String(renderer.tags[0]).startsWith("heat")) renderer.visible = renderer.tags[0] === `heat${heat.value}`;
  });
}

// Tasks

async function unpack() {
  const bytes = Uint8Array.from(atob($("data").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function options(select, data, chosen) {
  data.units.forEach((unit, i) => select.append(element("option", unit.name, {value: i})));
  select.value = String(Math.min(chosen, data.units.length - 1));
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
  options($("unit"), data, data.opens[1]);
  $("unit").addEventListener("change", refresh);
  $("search").addEventListener("input", refresh);
  $("previous").addEventListener("click", () => { page--; draw(); });
  $("next").addEventListener("click", () => { page++; draw(); });
  mark();
  refresh();
}

// Comparison of two runs

function comparison(data) {
  const source = (plot, name) => plot.renderers.map((r) => r.data_source).find((s) => s.name === name);
  function refresh() {
    const [a, b] = ["compare-a", "compare-b"].map((id) => data.units[Number($(id).value)]);
    $("compare-body").replaceChildren(...Object.keys(a.metrics).map((m) => {
      const tr = element("tr", null), x = a.metrics[m], y = b.metrics[m];
      tr.append(element("th", m, {scope: "row"}), element("td", number(x)), element("td", number(y)),
        element("td", x === null || y === null ? "-" : (y - x > 0 ? "+" : "") + number(y - x)));
      return tr;
    }));
    const curves = plots["compare-curves"], points = plots["compare-points"];
    source(curves, "curveA").data = {x: a.after, y: a.curve};
    source(curves, "curveB").data = {x: b.after, y: b.curve};
    const ta = data.tasks[a.tasks], tb = data.tasks[b.tasks];
    const place = ta === tb ? null : new Map(tb.names.map((n, i) => [n, i]));
    const found = {x: [], y: [], task: [], size: []};
    let better = 0, worse = 0;
    ta.names.forEach((name, i) => {
      const j = place ? place.get(name) : i;
      if (j === undefined || a.last[i] === null || b.last[j] === null) return;
      found.x.push(a.last[i]); found.y.push(b.last[j]); found.task.push(name);
      found.size.push(ta.train ? ta.train[i] : NaN);
      if (a.last[i] !== b.last[j]) (a.last[i] > b.last[j]) === data.higher ? better++ : worse++;
    });
    source(points, "points").data = found;
    $("compare-text").textContent = found.x.length
      ? `Of the tasks A ends better on ${better.toLocaleString("en")}, B on ${worse.toLocaleString("en")}, equal on ` +
        `${(found.x.length - better - worse).toLocaleString("en")}.`
      : "The two have no task in common.";
  }
  options($("compare-a"), data, data.opens[0]);
  options($("compare-b"), data, data.opens[1]);
  $("compare-a").addEventListener("change", refresh);
  $("compare-b").addEventListener("change", refresh);
  refresh();
}

(async () => {
  setTheme(document.documentElement.dataset.theme);
  await drawPlots();
  Object.values(plots).forEach(colourPlot);
  connect();
  if ($("unit")) {
    if (typeof DecompressionStream === "undefined") {
      $("tasks-count").textContent = "This browser cannot unpack the table of tasks; a newer one can.";
    } else {
      const data = await unpack();
      taskTable(data);
      if ($("compare-a")) comparison(data);
    }
  }
  document.documentElement.dataset.ready = "yes";
})();
