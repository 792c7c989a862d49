"use strict";
// The charts of a comparison of policies.
(() => {
  const MOST_POINTS = 2000;
  /** So few are shown one by one unless asked otherwise. */
  const FEW_JOBS = 200;
  const WORST = 10;

  const { digits, time, percent, many, short, logTicks, timeSteps, label, shownSeries, scale, key, base, grid, lines, axisX, axisY, tip, steps, curves, element, select, redraw } = Moira;

  let data;
  const choice = { held: 0, view: "", a: 0, b: 0 };

  const labels = () => data.policies.map((policy, index) => policy + (data.oracles[index] ? " *" : ""));
  const clock = () => Moira.clock(lasted());
  const lasted = () => Math.max(...data.views.map((view) => view.queue.step * view.queue.values.length), 1);

  const seedNote = () => (data.seeds > 1 ? `Seed ${data.seed} alone; the other seeds are in the table above.` : "");

  const seriesRows = (of) => shownSeries().flatMap((policy) => steps(policy, of(data.views[policy])));

  const overTime = (of, options) =>
    Moira.overTime(() => seriesRows(of), lasted, {
      ...options,
      csv: (rows) => [
        ["policy", "seed", "at_s", options.column],
        ...rows.map((row) => [data.policies[row.series], data.seed, row.from, row.value]),
      ],
      note: () => [seedNote(), options.note()].filter(Boolean).join(" "),
    });

  /** One small chart for each kind of GPU, below each other. */
  const perKind = (of, options) => {
    const rows = () =>
      data.kinds.flatMap((kind, index) => seriesRows((view) => of(view)[index] ?? { step: 1, values: [] }).map((row) => ({ ...row, kind: index })));
    const title = (kind) => `${data.kinds[kind].name} (${many(data.kinds[kind].gpus)} GPUs)`;
    return {
      draw(width) {
        const { unit, label: axis } = clock();
        const all = rows();
        const place = { x: (row) => row.at / unit, y: "value", fy: "kind" };
        const kinds = data.kinds.map((_, kind) => kind);
        return Plot.plot({
          ...base(width, 60 + kinds.length * 135, options.description),
          marginTop: 26,
          x: { label: axis },
          y: { label: null, domain: [0, 1], ticks: [0, 0.5, 1], tickFormat: (share) => `${share * 100} %`, ...grid },
          fy: { axis: null, domain: kinds, padding: 0.24 },
          color: scale(),
          marks: [
            Plot.text(kinds, { fy: (kind) => kind, text: title, frameAnchor: "top-left", dy: -16, fontWeight: 600 }),
            Plot.ruleY([0], { stroke: "currentColor", strokeOpacity: 0.4 }),
            ...lines(all, place),
            tip(all, place, (row) => `${label(row.series)}\n${digits(row.from / unit)} ${axis.split(" ")[0]}: ${percent(row.value)}`),
          ],
        });
      },
      csv: () => [
        ["policy", "seed", "gpu_kind", "at_s", options.column],
        ...rows().map((row) => [data.policies[row.series], data.seed, data.kinds[row.kind].name, row.from, row.value]),
      ],
      key,
      note: seedNote,
    };
  };

  // ---- the charts

  const completionRows = () =>
    shownSeries().flatMap((policy) => {
      const curve = data.curves[policy];
      return curve.seconds
        .map((seconds, index) => ({ series: policy, seconds, share: curve.share[index] }))
        .filter((row) => row.seconds > 0);
    });

  const completion = curves(completionRows, {
    description: "Cumulative distribution of completion times, one line for each policy",
    label: "completion time",
    share: "share of jobs",
    told: (row) => `${percent(row.share)} of jobs within ${time(row.seconds)}`,
    csv: (rows) => [["policy", "jct_s", "share_of_jobs"], ...rows.map((row) => [data.policies[row.series], row.seconds, row.share])],
    note() {
      const jobs = Math.max(...data.curves.map((curve) => curve.count), 0);
      const points = Math.max(...data.curves.map((curve) => curve.seconds.length), 0);
      const from = data.seeds > 1 ? `The jobs of all ${data.seeds} seeds together. ` : "";
      return from + (points < jobs ? `Each line goes through ${points} of ${many(jobs)} jobs, evenly by rank.` : "");
    },
  });

  const sizeOf = (gpus) => (gpus < 1 ? 0 : gpus <= 1 ? 1 : gpus <= 4 ? 2 : gpus <= 8 ? 3 : gpus <= 16 ? 4 : gpus <= 64 ? 5 : 6);

  const held = {
    controls(box) {
      select(box, "Policy", labels(), choice.held, (index) => (choice.held = index));
      const views = Object.keys(held.views());
      choice.view = data.jobs.total <= FEW_JOBS ? views[0] : "by size of job";
      select(box, "Shown", views, views.indexOf(choice.view), (index) => (choice.view = views[index]));
    },
    views() {
      const view = data.views[choice.held];
      const few = data.views.every((other) => other.bars);
      return { ...(few ? { "each job": null } : {}), "by size of job": view.bySize, "by user": view.byUser };
    },
    areas: () => held.views()[choice.view],
    draw(width) {
      return held.areas() ? held.stack(width) : held.bars(width);
    },
    bars(width) {
      const { unit, label: axis } = clock();
      const bars = data.views[choice.held].bars;
      const jobs = data.jobs.names.map((name, job) => ({ job, name, from: data.jobs.submitted[job], lasted: data.jobs.completion[choice.held][job] }));
      const alive = jobs.filter((job) => job.lasted != null);
      const row = jobs.length <= 16 ? 22 : jobs.length <= 40 ? 15 : jobs.length <= 100 ? 8 : jobs.length <= 200 ? 5 : 3;
      const named = row >= 15;
      const margin = named ? Math.min(150, width / 4) : 52;
      const place = { x1: (bar) => bar[1] / unit, x2: (bar) => bar[2] / unit, y: (bar) => bar[0] };
      return Plot.plot({
        ...base(width, 60 + jobs.length * row, "GPUs held by each job over time"),
        marginLeft: margin,
        x: { label: axis, ...grid },
        y: {
          type: "band",
          domain: jobs.map((job) => job.job),
          label: named ? null : "jobs in order of submission",
          tickSize: 0,
          ticks: named ? undefined : jobs.map((job) => job.job).filter((job) => job % 20 === 0),
          tickFormat: (job) => (named ? short(data.jobs.names[job], Math.floor(margin / 8)) : String(job)),
          padding: 0.15,
        },
        color: { type: "ordinal", domain: data.sizes, range: data.sizes.map((_, size) => `var(--s${size})`) },
        marks: [
          Plot.ruleY(alive, { y: "job", x1: (job) => job.from / unit, x2: (job) => (job.from + job.lasted) / unit, stroke: "currentColor", strokeOpacity: 0.3 }),
          Plot.barX(bars, { ...place, fill: (bar) => data.sizes[sizeOf(bar[3])] }),
          Plot.tip(bars, Plot.pointer({ x: (bar) => (bar[1] + bar[2]) / 2 / unit, y: (bar) => bar[0], maxRadius: 60, title: (bar) => `${data.jobs.names[bar[0]]} (${data.jobs.users[data.jobs.user[bar[0]]]})\n${digits(bar[3])} GPUs for ${time(bar[2] - bar[1])}` })),
        ],
      });
    },
    stack(width) {
      const { unit, label: axis } = clock();
      const areas = held.areas();
      const rows = areas.groups.flatMap((group, index) => group.values.map((value, at) => ({ group: group.name, index, at: at * areas.step, value })));
      const total = d3.sum(data.kinds, (kind) => kind.gpus);
      const place = { x: (row) => row.at / unit, y: "value" };
      const key = held.key();
      return Plot.plot({
        ...base(width, Math.min(420, 220 + width / 6), "GPUs held over time, stacked"),
        x: { label: axis },
        y: { label: "GPUs held", ...grid },
        color: { type: "ordinal", domain: key.map((item) => item.name), range: key.map((item) => item.colour) },
        marks: [
          Plot.areaY(rows, Plot.stackY({ order: areas.groups.map((group) => group.name) }, { ...place, z: "group", fill: "group", curve: "step-after" })),
          Plot.ruleY([total], { stroke: "currentColor", strokeDasharray: "4 3" }),
          Plot.text([total], { y: total, text: [`all ${many(total)} GPUs`], frameAnchor: "right", dy: -7 }),
          Plot.tip(rows, Plot.pointer(Plot.stackY({ order: areas.groups.map((group) => group.name) }, { ...place, z: "group", maxRadius: 60, title: (row) => `${row.group}\n${digits(row.at / unit)} ${axis.split(" ")[0]}: ${digits(row.value)} GPUs` }))),
        ],
      });
    },
    key() {
      const areas = held.areas();
      if (areas) {
        const bySize = choice.view === "by size of job";
        return areas.groups.map((group, index) => ({ name: group.name, colour: bySize ? `var(--s${data.sizes.indexOf(group.name)})` : `var(--c${index})` }));
      }
      const used = new Set(data.views[choice.held].bars.map((bar) => sizeOf(bar[3])));
      return data.sizes.map((name, size) => ({ name, size, colour: `var(--s${size})` })).filter((item) => used.has(item.size));
    },
    ownKey: true,
    csv() {
      const policy = data.policies[choice.held];
      const areas = held.areas();
      if (areas) {
        const rows = areas.groups.flatMap((group) => group.values.map((value, at) => [policy, data.seed, group.name, at * areas.step, value]));
        return [["policy", "seed", "group", "at_s", "gpus_held"], ...rows];
      }
      const rows = data.views[choice.held].bars.map((bar) => [policy, data.seed, bar[0], data.jobs.names[bar[0]], bar[1], bar[2], bar[3]]);
      return [["policy", "seed", "job", "name", "from_s", "until_s", "gpus"], ...rows];
    },
    note() {
      const areas = held.areas();
      const dense = "each job" in held.views() ? "" : `${many(data.jobs.total)} jobs are too many to be told apart, so they are grouped. `;
      const what = areas ? `${dense}Means over ${time(areas.step)}. ` : "A bar is a job that holds GPUs, coloured by how many; the thin line is its life from submission to end. ";
      return what + seedNote();
    },
  };

  const fairness = {
    rows: () =>
      shownSeries().flatMap((policy) =>
        data.tenants.names.map((_, tenant) => ({ series: policy, tenant, service: data.tenants.service[policy][tenant], waiting: data.tenants.waiting[policy][tenant] })),
      ),
    draw(width) {
      const rows = fairness.rows().filter((row) => row.service > 0);
      const tenants = data.tenants.names.map((_, tenant) => tenant);
      const place = { x: "service", y: "tenant" };
      const spread = d3.extent(rows.map((row) => row.service).concat([0.8, 1.25]));
      const within = (tick) => tick >= spread[0] / 1.1 && tick <= spread[1] * 1.1;
      const close = spread[1] / spread[0] < 6 ? [0.6, 0.8, 1.25, 1.5, 3] : [];
      const ticks = [1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16, 32, 64].concat(close).filter(within);
      const written = (value) => (value < 1 && Number.isInteger(1 / value) ? `1/${1 / value}` : String(value));
      return Plot.plot({
        ...base(width, 70 + tenants.length * 24, "Service of each tenant compared with a fair share, one dot for each policy"),
        marginLeft: Math.min(150, width / 3.2),
        x: { type: "log", domain: [spread[0] / 1.1, spread[1] * 1.1], label: "service compared with a fair share", ticks, ...grid },
        y: { type: "point", domain: tenants, label: null, tickSize: 0, tickFormat: (tenant) => short(data.tenants.names[tenant], Math.floor(Math.min(150, width / 3.2) / 7.5)), grid: true },
        color: scale(),
        marks: [
          axisX(ticks, written),
          Plot.ruleX([1], { stroke: "currentColor", strokeWidth: 1.5 }),
          Plot.dot(rows, { ...place, fill: (row) => label(row.series), r: 4.5, fillOpacity: 0.9, stroke: "var(--paper)", strokeWidth: 0.8 }),
          tip(rows, place, (row) => `${data.tenants.names[row.tenant]}, ${label(row.series)}\nserved ${digits(row.service)} times as well as by a fair share\nmean waiting ${time(row.waiting)}\n${digits(data.tenants.gpuHours[row.tenant])} GPU hours`),
        ],
      });
    },
    csv: () => [
      ["policy", "tenant", "service", "waiting_mean_s", "gpu_hours_mean_over_policies"],
      ...fairness.rows().map((row) => [data.policies[row.series], data.tenants.names[row.tenant], row.service, row.waiting, data.tenants.gpuHours[row.tenant]]),
    ],
    key,
    note() {
      const { leftOut, names } = data.tenants;
      const all = data.seeds > 1 ? `Over all ${data.seeds} seeds. ` : "";
      const rest = leftOut > 0 ? `The ${names.length} who hold the most; ${many(leftOut)} others are left out (see --csv).` : "Tenants who hold the most come first.";
      return `${all}Service is Σ fair time / Σ completion time of a tenant's finished jobs. ${rest}`;
    },
  };

  const jobs = {
    controls(box) {
      const across = select(box, "Across", labels(), choice.a, (index) => (choice.a = index));
      const up = select(box, "Up", labels(), choice.b, (index) => (choice.b = index));
      const swap = element("button", "Swap");
      swap.type = "button";
      swap.addEventListener("click", () => {
        [choice.a, choice.b] = [choice.b, choice.a];
        [across.selectedIndex, up.selectedIndex] = [choice.a, choice.b];
        redraw("jobs");
      });
      box.append(swap);
    },
    rows() {
      const [a, b] = [data.jobs.completion[choice.a], data.jobs.completion[choice.b]];
      const rows = [];
      for (let job = 0; job < a.length; job += 1) {
        if (a[job] > 0 && b[job] > 0) rows.push({ job, a: a[job], b: b[job] });
      }
      return rows;
    },
    /** Those that the policy going up makes wait longest, compared with the other. */
    worst: (rows) => rows.filter((row) => row.b > row.a).sort((x, y) => y.b / y.a - x.b / x.a || x.job - y.job).slice(0, WORST),
    /** Those whose numbers do not cover each other: further apart than by a factor, one way or the other. */
    apart: (rows, factor) =>
      rows.reduce((kept, row) => {
        const near = (other) => Math.max(row.a / other.a, other.a / row.a, row.b / other.b, other.b / row.b) < factor;
        return kept.some(near) ? kept : [...kept, row];
      }, []),
    draw(width) {
      const rows = jobs.rows();
      const worst = jobs.worst(rows);
      jobs.table(worst);
      const domain = d3.extent(rows.flatMap((row) => [row.a, row.b]));
      if (domain[0] === undefined) return Plot.plot({ ...base(width, 120, "No job finished under both"), marks: [Plot.text(["No job finished under both policies"], { frameAnchor: "middle" })] });
      const wide = [domain[0] / 1.15, domain[1] * 1.15];
      const side = Math.min(width, 640);
      const ticks = logTicks(wide, side);
      const place = { x: "a", y: "b" };
      const dense = rows.length > MOST_POINTS;
      const named = jobs.apart(worst, (wide[1] / wide[0]) ** (18 / side));
      return Plot.plot({
        ...base(side, side * 0.85, `Completion time of each job under ${label(choice.a)} and ${label(choice.b)}`),
        marginLeft: 62,
        marginTop: 26,
        x: { type: "log", domain: wide, label: `under ${short(label(choice.a), 40)}`, ticks, ...grid },
        y: { type: "log", domain: wide, label: `under ${short(label(choice.b), 40)}`, ticks, ...grid },
        r: { type: "sqrt", range: [1.1, 7.5] },
        marks: [
          axisX(ticks, time),
          axisY(ticks, time),
          Plot.line([[wide[0], wide[0]], [wide[1], wide[1]]], { stroke: "currentColor", strokeDasharray: "4 3" }),
          dense
            ? Plot.dot(rows, Plot.hexbin({ r: "count" }, { ...place, binWidth: 12, fill: "var(--accent)", fillOpacity: 0.75 }))
            : Plot.dot(rows, { ...place, r: 2.6, fill: "var(--accent)", fillOpacity: 0.55 }),
          Plot.dot(worst, { ...place, r: 5, stroke: "var(--worst)", strokeWidth: 2 }),
          Plot.text(named, { ...place, text: (row) => String(worst.indexOf(row) + 1), dx: -11, fill: "var(--worst)", fontWeight: 700, stroke: "var(--paper)", strokeWidth: 3 }),
          tip(dense ? worst : rows, place, (row) => `${jobs.title(row.job)} of ${data.jobs.users[data.jobs.user[row.job]]}\n${digits(data.jobs.gpus[row.job])} GPUs\n${time(row.a)} across, ${time(row.b)} up`),
        ],
      });
    },
    title: (job) => `${data.jobs.names[job]} (job ${job * data.jobs.stride})`,
    table(worst) {
      const table = document.getElementById("worst");
      const row = (cells, head) => {
        const line = element("tr");
        cells.forEach(([text, number], index) => {
          const cell = element(head || index === 1 ? "th" : "td", text);
          if (head) cell.scope = "col";
          else if (index === 1) cell.scope = "row";
          if (number) cell.className = "n";
          line.append(cell);
        });
        return line;
      };
      const head = element("thead");
      head.append(row([["#"], ["Job treated worst"], ["User"], ["GPUs", true], [`under ${short(label(choice.a), 28)}`, true], [`under ${short(label(choice.b), 28)}`, true], ["times as long", true]], true));
      const body = element("tbody");
      worst.forEach((job, index) => {
        const user = data.jobs.users[data.jobs.user[job.job]];
        body.append(row([[String(index + 1)], [jobs.title(job.job)], [user], [digits(data.jobs.gpus[job.job]), true], [time(job.a), true], [time(job.b), true], [digits(job.b / job.a), true]]));
      });
      if (worst.length === 0) body.append(row([["–"], ["No job is worse off"], [""], [""], [""], [""], [""]]));
      table.replaceChildren(head, body);
    },
    csv: () => [
      ["job", "name", "user", "gpus", `jct_s under ${data.policies[choice.a]}`, `jct_s under ${data.policies[choice.b]}`],
      ...jobs.rows().map((row) => [row.job * data.jobs.stride, data.jobs.names[row.job], data.jobs.users[data.jobs.user[row.job]], data.jobs.gpus[row.job], row.a, row.b]),
    ],
    key: () => [],
    note() {
      const rows = jobs.rows().length;
      const thinned = data.jobs.stride > 1 ? `Of ${many(data.jobs.total)} jobs, one in ${data.jobs.stride} is here. ` : "";
      const dense = rows > MOST_POINTS ? `${many(rows)} jobs are too many to be told apart: a larger dot stands for more of them. ` : "";
      return `${thinned}${dense}Numbered: the jobs that take longest under ${label(choice.b)} compared with ${label(choice.a)}. ${seedNote()}`;
    },
  };

  const charts = {
    completion,
    held,
    queue: overTime((view) => view.queue, { description: "Queue length over time, one line for each policy", label: "jobs waiting", format: (value) => `${digits(value)} jobs`, column: "queue_length", note: () => `Means over ${time(data.views[0].queue.step)}.` }),
    waiting: overTime((view) => view.waiting, {
      description: "Mean waiting of the jobs submitted at each time, one line for each policy",
      label: "mean waiting",
      ticks: time,
      format: (value) => `waited ${time(value)}`,
      column: "waiting_mean_s",
      dots: true,
      y: (rows) => ({ ticks: timeSteps(d3.max(rows, (row) => row.value) ?? 1) }),
      note: () => `Jobs submitted within ${time(data.views[0].waiting.step)} of each other are averaged.`,
    }),
    utilisation: perKind((view) => view.utilisation, { description: "Utilisation over time of each kind of GPU, one line for each policy", column: "utilisation" }),
    fragmentation: perKind((view) => view.fragmentation, { description: "Fragmentation over time of each kind of GPU, one line for each policy", column: "fragmentation" }),
    fairness,
    jobs,
  };

  /** At first the slowest and the soonest of those without an oracle are held against each other. */
  function rivals() {
    const means = data.jobs.completion.map((times) => d3.mean(times) ?? Infinity);
    const honest = means.map((_, policy) => policy).filter((policy) => !data.oracles[policy]);
    const ranked = d3.sort(honest.length > 1 ? honest : means.keys(), (policy) => means[policy]);
    [choice.a, choice.b] = [ranked.at(-1), ranked[0]];
    choice.held = choice.b;
  }

  Moira.begin((read) => {
    data = read;
    Moira.show(labels(), charts, rivals);
  });
})();
