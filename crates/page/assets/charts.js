"use strict";
// What all pages share: how numbers read, how charts look, how they are exported, and when they are drawn. Names from
// outside go into the page as text only.
const Moira = (() => {
  const root = document.documentElement;
  /** Beyond them, series differ in their dashes. */
  const COLOURS = 16;
  /** So few values are drawn as dots, too: of one alone there is no line. */
  const FEW_VALUES = 30;
  const DASHES = ["none", "7 3", "2 3", "9 3 2 3"];

  /** Each has a colour in all charts: a policy, or a workload. */
  let series = [];
  let shown = [];
  let charts = {};
  /** What draws everything, until it has begun. */
  let start = null;

  // ---- numbers and times as people read them

  const digits = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3))));
  const time = (seconds) => {
    if (seconds == null) return "";
    if (seconds < 60) return `${digits(seconds)} s`;
    if (seconds < 3600) return `${digits(seconds / 60)} min`;
    if (seconds < 172800) return `${digits(seconds / 3600)} h`;
    return `${digits(seconds / 86400)} d`;
  };
  const percent = (share) => `${digits(share * 100)} %`;
  const many = (count) => count.toLocaleString("en-GB").replace(/,/g, "\u202f");
  const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  const ROUND_TIMES = [0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400];
  const ROUNDER_TIMES = [0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 86400 / 2, 86400, 2 * 86400, 4 * 86400, 7 * 86400, 14 * 86400, 30 * 86400, 60 * 86400, 365 * 86400];
  const logTicks = ([low, high], width) => {
    const within = (times) => times.filter((tick) => tick >= low && tick <= high);
    const fitting = within(ROUNDER_TIMES).length <= width / 80 ? within(ROUNDER_TIMES) : within(ROUND_TIMES);
    return fitting.length > width / 55 ? fitting.filter((_, index) => index % 2 === 1) : fitting;
  };

  /** Time since the first submission, in minutes, hours or days. */
  const clock = (lasted) => {
    const [unit, name] = lasted > 4 * 86400 ? [86400, "days"] : lasted > 7200 ? [3600, "hours"] : [60, "minutes"];
    return { unit, name, label: `${name} since the first submission` };
  };

  /** About five round times from 0 to the most. */
  const timeSteps = (most) => {
    const units = [1, 2, 5, 10, 15, 30].flatMap((step) => [step, step * 60]).concat([1, 2, 3, 6, 12, 24, 48, 168, 336, 720].map((hours) => hours * 3600)).sort((a, b) => a - b);
    const step = units.find((unit) => most / unit <= 6) ?? units.at(-1);
    return d3.range(0, most + step, step);
  };

  // ---- what the charts share

  const colour = (one) => `var(--c${one % COLOURS})`;
  const dash = (one) => DASHES[Math.floor(one / COLOURS) % DASHES.length];
  const label = (one) => series[one];
  const shownSeries = () => series.map((_, one) => one).filter((one) => shown[one]);
  const scale = () => ({ type: "ordinal", domain: series, range: series.map((_, one) => colour(one)) });
  const key = () => shownSeries().map((one) => ({ name: label(one), colour: colour(one), dash: dash(one) }));

  const base = (width, height, description) => ({
    width,
    height,
    marginLeft: 52,
    marginRight: 16,
    marginBottom: 38,
    ariaLabel: description,
    style: { fontSize: "12px", background: "transparent", color: "inherit" },
  });
  const grid = { grid: true };

  /** One line for each series; those beyond the colours there are differ in their dashes. */
  const lines = (rows, options) => {
    const groups = d3.group(rows, (row) => dash(row.series));
    return Array.from(groups, ([dashes, group]) =>
      Plot.line(group, {
        ...options,
        z: "series",
        stroke: (row) => label(row.series),
        strokeWidth: 1.8,
        ...(dashes === "none" ? {} : { strokeDasharray: dashes }),
      }),
    );
  };

  /** An axis with a label at every tick: on logarithmic scales the library would leave some out. */
  const axisX = (ticks, text) => Plot.axisX(ticks, { text });
  const axisY = (ticks, text) => Plot.axisY(ticks, { text });

  const tip = (rows, options, title) => Plot.tip(rows, Plot.pointer({ ...options, title, maxRadius: 60, fontSize: 12 }));

  const nothing = (width, description) =>
    Plot.plot({ ...base(width, 120, description), marks: [Plot.text(["Nothing to show"], { frameAnchor: "middle" })] });

  /** The values of a line that has one for every step, where there is one. */
  const steps = (one, line) =>
    line.values
      .map((value, index) => ({ series: one, at: (index + 0.5) * line.step, from: index * line.step, until: (index + 1) * line.step, value }))
      .filter((row) => row.value !== null);

  /** One line for each series over time. `of` gives the rows, `lasted` how long it all took. */
  const overTime = (of, lasted, options) => ({
    draw(width) {
      const { unit, name, label: axis } = clock(lasted());
      const rows = of();
      const place = { x: (row) => row.at / unit, y: "value" };
      const marks = options.marks?.(unit) ?? [];
      return Plot.plot({
        ...base(width, Math.min(320, 180 + width / 8), options.description),
        x: { label: axis, nice: false },
        y: { label: options.label, ...grid, zero: true, nice: true, tickFormat: options.ticks, ...options.y?.(rows) },
        color: scale(),
        marks: [
          Plot.ruleY([0], { stroke: "currentColor", strokeOpacity: 0.4 }),
          ...lines(rows, place),
          ...(options.dots || rows.length < FEW_VALUES ? [Plot.dot(rows, { ...place, r: 2, fill: (row) => label(row.series) })] : []),
          ...marks,
          tip(rows, place, (row) => `${label(row.series)}\n${digits(row.from / unit)} ${name}: ${options.format(row.value)}`),
        ],
      });
    },
    csv: () => options.csv(of()),
    key,
    note: options.note,
  });

  /** Distribution functions on a logarithmic axis of times: rows of seconds and shares. */
  const curves = (of, options) => ({
    draw(width) {
      const rows = of();
      if (rows.length === 0) return nothing(width, options.description);
      const place = { x: "seconds", y: "share" };
      const ticks = logTicks(d3.extent(rows, (row) => row.seconds), width);
      return Plot.plot({
        ...base(width, Math.min(420, 220 + width / 6), options.description),
        x: { type: "log", label: options.label, ticks, ...grid },
        y: { label: options.share, domain: [0, 1], tickFormat: (share) => `${Math.round(share * 100)} %`, ...grid },
        color: scale(),
        marks: [
          axisX(ticks, time),
          ...lines(rows, { ...place, curve: "step-after" }),
          tip(rows, place, (row) => `${label(row.series)}\n${options.told(row)}`),
        ],
      });
    },
    csv: () => options.csv(of()),
    key,
    note: options.note,
  });

  // ---- elements

  function element(tag, text) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function select(box, title, options, chosen, choose) {
    const wrap = element("label", `${title} `);
    const list = element("select");
    options.forEach((text, index) => {
      const option = element("option", text);
      option.selected = index === chosen;
      list.append(option);
    });
    list.addEventListener("change", () => {
      choose(list.selectedIndex);
      redraw(box.closest("section").id);
    });
    wrap.append(list);
    box.append(wrap);
    return list;
  }

  function swatch(one) {
    const holder = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    holder.setAttribute("width", 22);
    holder.setAttribute("height", 10);
    holder.setAttribute("aria-hidden", "true");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    Object.entries({ x1: 0, x2: 22, y1: 5, y2: 5, stroke: colour(one), "stroke-width": 3, "stroke-dasharray": dash(one) }).forEach(([name, value]) => line.setAttribute(name, value));
    holder.append(line);
    return holder;
  }

  /** One series stands out in all charts, the others step back; nothing is null. */
  function highlight(one) {
    document.querySelectorAll(".plot [data-series]").forEach((mark) => {
      const is = Number(mark.dataset.series) === one;
      mark.classList.toggle("ahead", one !== null && is);
      mark.classList.toggle("behind", one !== null && !is);
    });
  }

  /** Marks each line and dot with its series, told by its colour and its dashes. */
  function nameMarks(drawn) {
    const dashes = (mark) => mark.getAttribute("stroke-dasharray") ?? mark.parentNode.getAttribute("stroke-dasharray") ?? "none";
    const plain = (text) => text.replaceAll(",", " ").replaceAll(/\s+/g, " ");
    drawn.querySelectorAll("path[stroke^='var(--c'], circle[fill^='var(--c']").forEach((mark) => {
      const is = mark.getAttribute(mark.tagName === "path" ? "stroke" : "fill");
      const found = series.findIndex((_, one) => colour(one) === is && (mark.tagName !== "path" || plain(dash(one)) === plain(dashes(mark))));
      if (found >= 0) mark.dataset.series = found;
    });
  }

  function legend() {
    const box = document.getElementById("legend");
    const checks = [];
    const all = (checked) => {
      const button = element("button", checked ? "All" : "None");
      button.type = "button";
      button.addEventListener("click", () => {
        checks.forEach((check) => (check.checked = checked));
        shown = shown.map(() => checked);
        redrawAll();
      });
      return button;
    };
    if (series.length > 2) box.append(all(true), all(false));
    series.forEach((_, one) => {
      const wrap = element("label");
      const check = element("input");
      check.type = "checkbox";
      check.checked = true;
      check.addEventListener("change", () => {
        shown[one] = check.checked;
        redrawAll();
      });
      checks.push(check);
      wrap.append(check, swatch(one), element("span", label(one)));
      wrap.addEventListener("pointerenter", () => highlight(one));
      wrap.addEventListener("pointerleave", () => highlight(null));
      check.addEventListener("focus", () => highlight(one));
      check.addEventListener("blur", () => highlight(null));
      box.append(wrap);
    });
    const measure = () => root.style.setProperty("--bar", getComputedStyle(box).position === "sticky" ? `${box.offsetHeight}px` : "0px");
    new ResizeObserver(measure).observe(box);
    measure();
  }

  function controls(id) {
    const box = document.querySelector(`#${id} .controls`);
    const title = document.querySelector(`#${id} h2`).textContent;
    charts[id].controls?.(box);
    const exports = element("span");
    exports.className = "exports";
    for (const [kind, make, type] of [["SVG", svgText, "image/svg+xml"], ["CSV", csvText, "text/csv"]]) {
      const button = element("button", kind);
      button.type = "button";
      button.dataset.export = kind.toLowerCase();
      button.setAttribute("aria-label", `Download as ${kind}: ${title}`);
      button.addEventListener("click", () => download(`moira-${id}.${kind.toLowerCase()}`, make(id), type));
      exports.append(button);
    }
    box.append(exports);
  }

  function redraw(id) {
    const section = document.getElementById(id);
    const holder = section.querySelector(".plot");
    const chart = charts[id];
    const drawn = chart.draw(Math.max(280, Math.floor(holder.clientWidth)));
    drawn.setAttribute("role", "img");
    const quieten = () =>
      drawn.querySelectorAll("g[aria-label]").forEach((mark) => {
        mark.dataset.mark = mark.getAttribute("aria-label");
        mark.removeAttribute("aria-label");
      });
    // The picture as a whole has a label; its parts are not announced.
    quieten();
    nameMarks(drawn);
    // The library tells by this event what the pointer is near.
    drawn.addEventListener("input", () => {
      highlight(drawn.value?.series ?? null);
      // It draws the tip anew, after it has told.
      setTimeout(quieten);
    });
    holder.replaceChildren(drawn);
    section.querySelector(".plot + .note").textContent = chart.note();
    if (chart.ownKey) {
      const items = chart.key().map((item) => {
        const line = element("li");
        const box = element("span");
        box.style.background = item.colour;
        line.append(box, item.name);
        return line;
      });
      section.querySelector(".keys").replaceChildren(...items);
    }
    section.dataset.drawn = "true";
  }

  /** One chart after the other, so that the page answers in between. */
  function redrawAll(done) {
    const waiting = Object.keys(charts);
    const next = () => {
      const id = waiting.shift();
      if (id === undefined) return done?.();
      redraw(id);
      setTimeout(next);
    };
    next();
  }

  // ---- exports

  function csvText(id) {
    const field = (value) => {
      const text = value == null ? "" : String(value);
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return charts[id].csv().map((row) => row.map(field).join(",")).join("\n") + "\n";
  }

  /** The chart as it is shown, with its colours spelled out and a key below, so that it stands alone. */
  function svgText(id) {
    const style = getComputedStyle(root);
    const value = (name) => style.getPropertyValue(name).trim();
    const copy = document.querySelector(`#${id} .plot svg`).cloneNode(true);
    copy.querySelectorAll('[data-mark="tip"], [aria-label="tip"]').forEach((mark) => mark.remove());
    const [width, height] = [Number(copy.getAttribute("width")), Number(copy.getAttribute("height"))];
    const make = (tag, attributes, text) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      Object.entries(attributes).forEach(([name, content]) => made.setAttribute(name, content));
      if (text !== undefined) made.textContent = text;
      return made;
    };
    let [x, y] = [12, height + 16];
    const key = make("g", { "font-size": 12, "font-family": "system-ui, sans-serif" });
    for (const item of charts[id].key()) {
      const room = 34 + item.name.length * 7;
      if (x + room > width && x > 12) [x, y] = [12, y + 18];
      key.append(make("line", { x1: x, x2: x + 20, y1: y - 4, y2: y - 4, stroke: item.colour, "stroke-width": 4, "stroke-dasharray": item.dash ?? "none" }));
      key.append(make("text", { x: x + 25, y, fill: "currentColor" }, item.name));
      x += room;
    }
    const total = charts[id].key().length > 0 ? y + 12 : height;
    copy.prepend(make("rect", { width, height: total, fill: value("--paper") }));
    copy.append(key);
    copy.setAttribute("height", total);
    copy.setAttribute("viewBox", `0 0 ${width} ${total}`);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.style.color = value("--ink");
    return new XMLSerializer().serializeToString(copy).replace(/var\((--[a-z0-9]+)\)/g, (whole, name) => value(name) || whole);
  }

  function download(name, text, type) {
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // ---- the rest of the page

  function theme() {
    const button = document.getElementById("theme");
    const names = { auto: "as the system", light: "light", dark: "dark" };
    let now = "auto";
    button.addEventListener("click", () => {
      now = { auto: "light", light: "dark", dark: "auto" }[now];
      if (now === "auto") delete root.dataset.theme;
      else root.dataset.theme = now;
      button.textContent = `Theme: ${names[now]}`;
    });
  }

  function copying() {
    document.getElementById("copy").addEventListener("click", async () => {
      const said = document.getElementById("copied");
      try {
        await navigator.clipboard.writeText(document.querySelector("#reproduce code").textContent);
        said.textContent = "Copied.";
      } catch {
        getSelection().selectAllChildren(document.querySelector("#reproduce code"));
        said.textContent = "Selected; copy it with the keyboard.";
      }
    });
  }

  /** Whoever prints or saves as PDF gets every chart, also if the page has just been opened. */
  function printing() {
    addEventListener("beforeprint", () => {
      start?.();
      for (const id of Object.keys(charts)) {
        if (!document.getElementById(id).dataset.drawn) redraw(id);
      }
    });
  }

  /** Shows a page: the names of its series, its charts by the id of their section, and what is to be done before. */
  function show(names, drawn, prepare) {
    [series, charts, shown] = [names, drawn, names.map(() => true)];
    if (series.length === 0) {
      document.querySelectorAll(".chart, #legend").forEach((part) => part.remove());
      root.dataset.ready = "true";
      return;
    }
    prepare?.();
    if (document.getElementById("legend")) legend();
    Object.keys(charts).forEach(controls);
    redrawAll(() => {
      root.dataset.ready = "true";
      let width = document.body.clientWidth;
      let soon;
      new ResizeObserver(() => {
        if (document.body.clientWidth === width) return;
        width = document.body.clientWidth;
        clearTimeout(soon);
        soon = setTimeout(redrawAll, 150);
      }).observe(document.body);
    });
  }

  /** Calls back with the data of the page once the text and the table are painted. */
  function begin(ready) {
    theme();
    copying();
    printing();
    start = () => {
      start = null;
      ready(JSON.parse(document.getElementById("data").textContent));
    };
    requestAnimationFrame(() => setTimeout(() => start?.()));
  }

  return { digits, time, percent, many, short, logTicks, timeSteps, clock, colour, dash, label, shownSeries, scale, key, base, grid, lines, axisX, axisY, tip, steps, overTime, curves, element, select, redraw, show, begin };
})();
