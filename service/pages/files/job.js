// The page of a job: its candidates over time as they come, its clock and power; the rest is fetched anew now and then.
"use strict";

addEventListener("DOMContentLoaded", async () => {
  const { id, status, ended, last, words } = document.getElementById("job").dataset;
  const page = await live.document();
  if (page === null) return;
  const told = page.history;
  // Candidates come as arrays, as there may be thousands.
  told.candidates = told.candidates.map((row) => Object.fromEntries(told.columns.map((name, at) => [name, row[at]])));
  const started = Date.parse(page.job.started_at || page.job.created_at);
  const charts = new Charts(told);
  charts.draw();
  const ends = ended.split(" ");
  if (ends.includes(status)) return;

  const now = new Now(told, page.job, JSON.parse(words));
  const soon = live.refresher();
  if (told.last_event > Number(last)) {
    // Something happened while the page was on its way.
    now.show();
    soon();
  }
  const kinds = ["started", "phase", "fallback", "batch", "builds", "candidate", "race", "selected"];
  live.follow(
    `/v1/jobs/${id}/events`,
    told.last_event,
    kinds,
    ends,
    (kind, data) => {
      if (kind === "candidate") charts.add(pointOf(data, started));
      now.take(kind, data);
      if (ends.includes(kind)) {
        live.end(["now", "builds"]).then(() => now.say());
      } else if (kind !== "builds") {
        soon();
      }
    },
    live.tellLink,
  );
});

function pointOf(event, started) {
  return { ...event, seconds: (Date.parse(event.at) - started) / 1000, family: event.config.split("(", 1)[0] };
}

// The line that says what is being done, and for screen readers the same, but not ten times a second.
class Now {
  constructor(told, job, words) {
    this.words = words;
    // The default of a job that waits may be built, and told, before its turn comes.
    this.begun = job.status === "running";
    this.phase = told.phase;
    this.detail = told.detail;
    this.standing = told.standing;
    this.candidates = told.candidates;
    this.of = told.of || job.budget.trials;
    this.proposed = told.proposed;
    this.builds = told.builds;
    this.left = told.seconds_left;
    this.saidAt = 0;
  }

  take(kind, data) {
    if (kind === "phase") [this.phase, this.detail] = [data.phase, data.detail];
    if (kind === "builds") this.builds = data;
    if (kind === "batch") this.proposed = data.trials;
    if (kind === "started" && data.budget.trials) this.of = data.budget.trials;
    if (kind === "candidate" || kind === "started") this.standing = data;
    if (kind === "candidate") [this.of, this.proposed] = [data.of || this.of, data.trials || this.proposed];
    if ("seconds_left" in data) this.left = data.seconds_left;
    this.begun ||= kind !== "fallback";
    this.show();
  }

  show() {
    if (!this.begun) return;
    // What the events of a range of m say is of the part that is searched.
    const range = this.candidates.some(({ m }) => m);
    const { tried, best_us: best, default_us: usual } = range ? { tried: this.candidates.length } : this.standing;
    const of = range ? "" : ` of ${this.of}`;
    const speed = best && usual ? ` (${(usual / best).toFixed(3)} × the default's speed)` : "";
    const left = this.left === null ? "" : `, at most ${Math.ceil(this.left)} s left`;
    const detail = this.detail && this.phase === "waiting" ? `(${this.detail})` : this.detail;
    const phase = [this.words[this.phase] || this.phase || "starting", detail].filter(Boolean).join(" ");
    const words = `${phase}: ${tried}${of} candidates tried${best ? `, best ${short(best)} µs${speed}` : ""}${left}.`;
    document.getElementById("now").textContent = words;
    const { queued, building, built } = this.builds;
    document.getElementById("builds").textContent =
      `${queued} queued, ${building} building, ${built} built and waiting to be measured; ` +
      `${this.proposed} candidates were proposed.`;
    if (performance.now() > this.saidAt + 10000) this.say();
  }

  say() {
    this.saidAt = performance.now();
    document.getElementById("said").textContent = document.getElementById("now").textContent;
  }
}

// The charts of a job's candidates: times, and clock and power.
class Charts {
  constructor(told) {
    this.points = told.candidates;
    this.families = Object.keys(told.space);
    this.timeline = new Chart("timeline", 340, (colours) => this.timelineOptions(colours), () => this.times());
    this.clock = new Chart("clock", 190, (colours) => this.clockOptions(colours), () => this.clocks());
    this.drawn = false;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
  }

  add(point) {
    this.points.push(point);
    if (this.drawn) return;
    this.drawn = true;
    // Several a second are drawn at once.
    setTimeout(() => {
      this.drawn = false;
      this.draw();
    }, 200);
  }

  draw() {
    const known = this.families.length;
    for (const { family } of this.points) {
      if (family && !this.families.includes(family)) this.families.push(family);
    }
    if (this.families.length > known) this.timeline.forget();
    if (!this.points.length) return;
    this.timeline.draw(`${this.points.length} candidates over time`);
    if (this.points.some((point) => point.clock_mhz)) this.clock.draw("Clock and power over time");
  }

  rebuild() {
    this.timeline.forget();
    this.clock.forget();
    this.draw();
  }

  // Seconds, the best so far, each family's times, and those that failed, which lie at the top.
  times() {
    this.points.sort((a, b) => a.seconds - b.seconds);
    let best = null;
    // Of a range of m each size has its own best.
    const line = this.points.map(({ us, m }) => (best = us && !m && (best === null || us < best) ? us : best));
    const families = this.families.map((name) => this.points.map(({ family, us }) => (family === name && us) || null));
    const top = Math.max(...this.points.map(({ us }) => us || 0)) || 1;
    const failed = Object.keys(failures()).map((kind) =>
      this.points.map(({ us, status }) => (!us && failureOf(status) === kind ? top * 1.12 : null)),
    );
    return [this.points.map(({ seconds }) => seconds), line, ...families, ...failed];
  }

  clocks() {
    const timed = this.points.filter((point) => point.clock_mhz);
    return ["seconds", "clock_mhz", "power_w"].map((name) => timed.map((point) => point[name]));
  }

  timelineOptions(colours) {
    const marked = (label, paths, colour, fill) => ({
      label,
      stroke: colour,
      paths: () => null,
      points: { show: true, stroke: colour, fill: fill ? colour : undefined, width: 1.5, paths, size: 8 },
    });
    return {
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: {
        x: { time: false, range: (_u, _low, high) => [0, Math.max(1, high * 1.02)] },
        y: { distr: 3, range: (_u, low, high) => [low * 0.9, high * 1.05] },
      },
      axes: [axis(colours, "seconds since the job was started"), { ...axis(colours, "µs a call"), ...logarithmic }],
      series: [
        {},
        { label: "best so far", stroke: colours("--ink"), width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } },
        ...this.families.map((name, place) => marked(name, marks(place % 4), colours(`--family${place % 4}`), true)),
        ...Object.entries(failures()).map(([kind, outline]) => marked(kind, outlines(outline), colours("--bad"), false)),
      ],
      hooks: { setCursor: [(chart) => this.point(chart)] },
    };
  }

  clockOptions(colours) {
    const series = (label, scale, colour, dash) => ({
      label, scale, dash, stroke: colour, width: 1.5, spanGaps: true, points: { show: true, size: 4, fill: colour },
    });
    const power = this.points.some((point) => point.power_w);
    return {
      legend: { show: true, live: false },
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false } },
      axes: [
        axis(colours, "seconds since the job was started"),
        { ...axis(colours, "MHz"), scale: "mhz" },
        { ...axis(colours, "W"), scale: "w", side: 1, grid: { show: false }, show: power },
      ],
      series: [
        {},
        series("clock, MHz", "mhz", colours("--family0")),
        { ...series("power, W (dashed)", "w", colours("--family1"), [6, 4]), show: power },
      ],
    };
  }

  // Say what the nearest mark is.
  point(chart) {
    const { left, top } = chart.cursor;
    if (left < 0) return;
    const height = (us) => (us ? chart.valToPos(us, "y") : 0);
    const far = ({ seconds, us }) => Math.hypot(chart.valToPos(seconds, "x") - left, height(us) - top);
    const nearest = this.points.reduce((best, point) => (far(point) < far(best) ? point : best));
    const { family, digest, us, predicted_us: predicted, seconds, message, m } = nearest;
    const where = m ? ` for m = ${m}` : "";
    const became = us
      ? `${short(us)} µs a call${predicted ? `, ${short(predicted)} were predicted` : ""}`
      : `${(nearest.status || "unknown").replace("_", " ")}${message ? `: ${message}` : ""}`;
    document.getElementById("pointed").textContent = `${family} ${digest}${where}, after ${seconds.toFixed(1)} s: ${became}.`;
  }
}

// A uPlot chart in a figure, as wide as that is.
class Chart {
  constructor(id, height, options, data) {
    this.figure = document.getElementById(id);
    this.height = height;
    this.options = options;
    this.data = data;
    this.chart = null;
    new ResizeObserver(() => this.chart?.setSize(this.size)).observe(this.figure);
  }

  get size() {
    return { width: Math.max(240, this.figure.clientWidth), height: this.height };
  }

  draw(label) {
    if (this.chart === null) {
      const style = getComputedStyle(document.documentElement);
      this.figure.replaceChildren();
      const place = document.createElement("div");
      place.setAttribute("role", "img");
      this.figure.append(place);
      this.chart = new uPlot({ ...this.size, ...this.options((name) => style.getPropertyValue(name).trim()) }, this.data(), place);
    } else {
      this.chart.setData(this.data());
    }
    this.figure.firstElementChild.setAttribute("aria-label", label);
  }

  forget() {
    this.chart?.destroy();
    this.chart = null;
  }
}

function axis(colours, label) {
  const lines = { stroke: colours("--line"), width: 1 };
  return { label, stroke: colours("--soft"), grid: lines, ticks: lines, labelSize: 22, font: "12px system-ui", labelFont: "12px system-ui" };
}

// Round values on a logarithmic axis, a few of them however narrow it is.
const logarithmic = {
  size: 62,
  splits: (_chart, _axis, low, high) => {
    for (const digits of [[1], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9]]) {
      const values = [];
      for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade += 1) {
        values.push(...digits.map((digit) => digit * 10 ** decade).filter((value) => value >= low && value <= high));
      }
      if (values.length >= 3) return values;
    }
    return [low, high];
  },
  filter: (_chart, splits) => splits,
  values: (_chart, splits) => splits.map((value) => Number(value.toPrecision(3)).toLocaleString("en")),
};

// The outline of the mark of each status of a candidate without a time, as the page defines them.
function failures() {
  const marks = [...document.querySelectorAll("marker[id^=failed-]")];
  return Object.fromEntries(marks.map((mark) => [mark.id.slice("failed-".length), mark.firstElementChild.getAttribute("d")]));
}

function failureOf(status) {
  return document.getElementById(`failed-${status}`) ? status : "other";
}

// The path of a series' marks: ``stamp(path, x, y)`` adds one.
function stamped(stamp, filled) {
  return (chart, series, first, last) => {
    const path = new Path2D();
    const [xs, ys] = [chart.data[0], chart.data[series]];
    for (let place = first; place <= last; place += 1) {
      if (ys[place] === null || ys[place] === undefined) continue;
      stamp(path, chart.valToPos(xs[place], "x", true), chart.valToPos(ys[place], "y", true));
    }
    return { stroke: path, fill: filled ? path : null, clip: null, flags: 3 };
  };
}

// Marks of what failed.
function outlines(outline) {
  const mark = new Path2D(outline);
  return stamped((path, x, y) => path.addPath(mark, new DOMMatrix([devicePixelRatio, 0, 0, devicePixelRatio, x, y])), false);
}

// Marks of a family: a circle, a square, a triangle, a diamond.
function marks(shape) {
  return stamped((path, x, y) => drawMark(path, shape, x, y, 4 * devicePixelRatio), true);
}

function drawMark(path, shape, x, y, size) {
  if (shape === 0) {
    path.moveTo(x + size, y);
    path.arc(x, y, size, 0, 2 * Math.PI);
  } else if (shape === 1) {
    path.rect(x - 0.9 * size, y - 0.9 * size, 1.8 * size, 1.8 * size);
  } else if (shape === 2) {
    corners(path, [[x - size, y + size], [x, y - size], [x + size, y + size]]);
  } else {
    corners(path, [[x - size, y], [x, y - size], [x + size, y], [x, y + size]]);
  }
}

function corners(path, points) {
  path.moveTo(...points[0]);
  for (const point of points.slice(1)) path.lineTo(...point);
  path.closePath();
}

function short(value) {
  const digits = value >= 1000 ? 0 : value >= 100 ? 1 : value >= 10 ? 2 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
