"use strict";
// The charts of an inspection: one workload, or two beside each other.
(() => {
  const { digits, time, percent, many, short, label, shownSeries, scale, key, base, grid, lines, tip, steps, curves } = Moira;

  let data;

  const side = (one) => data.sides[one];
  /** What is said of the distance between the two, if there are two. */
  const apart = (what) => data.distances?.[what] ?? "";
  const sentences = (...parts) => parts.filter(Boolean).join(" ");
  const most = (of) => d3.max(data.sides, of);

  const overTime = (of, options) =>
    Moira.overTime(
      () => shownSeries().flatMap((one) => steps(one, of(side(one)))),
      () => most((one) => of(one).step * of(one).values.length),
      {
        ...options,
        csv: (rows) => [["workload", "at_s", "step_s", options.column], ...rows.map((row) => [label(row.series), row.from, row.until - row.from, row.value])],
      },
    );

  /** Rates by the hour, of a day or of a week. */
  const rhythm = (of, options) => {
    const rows = () => shownSeries().flatMap((one) => of(side(one)).map((rate, hour) => ({ series: one, hour, rate })));
    return {
      draw(width) {
        const all = rows();
        const place = { x: (row) => (row.hour + 0.5) / options.unit, y: "rate" };
        return Plot.plot({
          ...base(width, Math.min(300, 180 + width / 10), options.description),
          x: { label: options.label, domain: [0, options.hours / options.unit], ticks: options.ticks },
          y: { label: "compared with the mean", zero: true, nice: true, ...grid },
          color: scale(),
          marks: [
            Plot.ruleY([1], { stroke: "currentColor", strokeOpacity: 0.5, strokeDasharray: "4 3" }),
            ...lines(all, place),
            tip(all, place, (row) => `${label(row.series)}\n${options.told(row.hour)}: ${digits(row.rate)} of the mean`),
          ],
        });
      },
      csv: () => [["workload", options.column, "rate_compared_with_mean"], ...rows().map((row) => [label(row.series), row.hour, row.rate])],
      key,
      note: options.note,
    };
  };

  const distribution = (of, options) =>
    curves(() => shownSeries().flatMap((one) => of(side(one)).filter(([seconds]) => seconds > 0).map(([seconds, share]) => ({ series: one, seconds, share }))), {
      ...options,
      share: "share of jobs",
      csv: (rows) => [["workload", options.column, "share_of_jobs"], ...rows.map((row) => [label(row.series), row.seconds, row.share])],
    });

  const MEASURES = ["share of jobs", "share of GPU time"];

  /** Two bars side by side for each row: its share of the jobs, and of the GPU time. */
  const bars = (rows, options) => ({
    draw(width) {
      const all = rows();
      const shares = all.flatMap((row) => [{ ...row, measure: MEASURES[0], share: row.jobs }, { ...row, measure: MEASURES[1], share: row.gpuTime }]);
      const named = new Map(all.map((row) => [row.place, row.name]));
      const margin = Math.min(140, width / 3.6);
      const place = { fx: "measure", x: "share", y: "place" };
      return Plot.plot({
        ...base(width, 70 + all.length * 19, options.description),
        marginLeft: margin,
        marginTop: 34,
        fx: { domain: MEASURES, label: null, padding: 0.12 },
        x: { label: null, domain: [0, Math.max(d3.max(shares, (row) => row.share) ?? 0, 0.01)], tickFormat: (share) => `${Math.round(share * 100)} %`, ticks: width < 500 ? 2 : 5, ...grid },
        y: { type: "band", domain: all.map((row) => row.place), label: null, tickSize: 0, padding: 0.12, tickFormat: (key) => short(named.get(key), Math.floor(margin / 7.5)) },
        color: scale(),
        marks: [
          Plot.barX(shares, { ...place, fill: (row) => label(row.series) }),
          Plot.ruleX([0], { stroke: "currentColor", strokeOpacity: 0.5 }),
          tip(shares, place, (row) => `${options.told(row)}, ${label(row.series)}\n${percent(row.jobs)} of jobs, ${percent(row.gpuTime)} of GPU time`),
        ],
      });
    },
    csv: () => [["workload", options.column, "share_of_jobs", "share_of_gpu_time"], ...rows().map((row) => [label(row.series), row.what, row.jobs, row.gpuTime])],
    key,
    note: options.note,
  });

  /** The same size of both workloads below each other. */
  const sizeRows = () => {
    const all = shownSeries().flatMap((one) => side(one).sizes.map((size) => ({ series: one, what: size.gpus, ...size })));
    const rows = d3.sort(all, (row) => row.gpus, (row) => row.series);
    return rows.map((row, index) => ({ ...row, place: `${row.gpus}/${row.series}`, name: rows[index - 1]?.gpus === row.gpus ? "" : `${row.gpus} GPU${row.gpus === 1 ? "" : "s"}` }));
  };
  const userRows = () =>
    shownSeries().flatMap((one) => side(one).users.map((user, rank) => ({ series: one, what: user.name, place: `${one}/${rank}`, ...user })));

  const HOURS = (hour) => `from ${hour % 24}:00`;

  const charts = {
    arrivals: overTime((one) => one.arrivals, {
      description: "Jobs submitted per hour over time",
      label: "jobs per hour",
      format: (value) => `${digits(value)} jobs per hour`,
      column: "jobs_per_hour",
      note: () => `Means over ${time(side(0).arrivals.step)}${data.sides.length > 1 ? ` and ${time(side(1).arrivals.step)}` : ""}.`,
    }),
    day: rhythm((one) => one.day, { description: "Submissions by hour of the day", label: "hour of the day", hours: 24, unit: 1, ticks: [0, 6, 12, 18, 24], column: "hour_of_day", told: HOURS, note: () => apart("day") }),
    week: rhythm((one) => one.week, {
      description: "Submissions by hour of the week",
      label: "day of the week from time zero",
      hours: 168,
      unit: 24,
      ticks: [0, 1, 2, 3, 4, 5, 6, 7],
      column: "hour_of_week",
      told: (hour) => `day ${Math.floor(hour / 24)}, ${HOURS(hour)}`,
      note: () => (data.sides.some((one) => one.lasted < 7 * 86400) ? "A workload of less than a week leaves hours empty." : ""),
    }),
    gaps: distribution((one) => one.gaps, {
      description: "Distribution of the times between submissions",
      label: "time between submissions",
      column: "seconds_between",
      told: (row) => `${percent(row.share)} within ${time(row.seconds)} of the one before`,
      note: () => sentences(apart("gaps"), "Jobs that came in the same moment as the one before are to the left of all."),
    }),
    sizes: bars(sizeRows, { description: "Sizes of jobs by their shares of jobs and GPU time", column: "gpus", told: (row) => `${row.what} GPUs`, note: () => sentences(apart("gpus"), `The ${most((one) => one.sizes.length)} most frequent of ${data.sides.map((one) => many(one.sizeCount)).join(" and ")} sizes.`) }),
    durations: distribution((one) => one.durations, {
      description: "Distribution of run times",
      label: "run time",
      column: "run_time_s",
      told: (row) => `${percent(row.share)} run at most ${time(row.seconds)}`,
      note: () => apart("durations"),
    }),
    load: overTime((one) => one.load, {
      description: "GPUs held over time if nobody waited",
      label: "GPUs",
      format: (value) => `${digits(value)} GPUs`,
      column: "gpus",
      marks: () => (data.clusterGpus ? [Plot.ruleY([data.clusterGpus], { stroke: "currentColor", strokeDasharray: "4 3" }), Plot.text([data.clusterGpus], { y: data.clusterGpus, text: [`all ${many(data.clusterGpus)} GPUs of the cluster`], frameAnchor: "right", dy: -7 })] : []),
      note: () => "From the first submission to the last: what still runs then is cut off.",
    }),
    users: bars(userRows, { description: "Users by their shares of jobs and GPU time", column: "user", told: (row) => row.what, note: () => `Of ${data.sides.map((one) => many(one.userCount)).join(" and ")} users.` }),
  };

  Moira.begin((read) => {
    data = read;
    Moira.show(data.names, charts);
  });
})();
