// <trivet-history> shows counts and lag of the last hour as small charts, and as a table. The values
// are those of the gateway that answers. A gap is a gap in the line.

import { count, duration, milliseconds, plural } from "./format.js";
import { PollSection } from "./section.js";
import { h, row, table } from "./view.js";

const fewestSlots = 60; // a chart is five minutes wide at least
const width = 240;
const height = 56;

const sum = (values) => values.reduce((total, value) => total + value, 0); // NaN if one is a gap
const largest = (values) => values.reduce((most, value) => (Number.isNaN(value) || value < most ? most : value), NaN);

const seconds = (value) => (value < 1 ? milliseconds(String(value)) : `${value.toFixed(1)} s`);

// charts are drawn if a service reports their series. from0 is whether the axis begins at zero.
const charts = [
  { title: "Problems", names: ["problems"], of: sum, from0: true },
  { title: "Leases alive", services: ["leasesvc"], names: ["alive"], of: sum },
  { title: "Leases without heartbeats", services: ["leasesvc"], names: ["suspect", "expired"], of: sum, from0: true },
  { title: "Endpoints in slices", services: ["slicesvc"], names: ["endpoints"], of: sum },
  { title: "Services that wait for a sync", services: ["slicesvc"], names: ["queue", "mirroring_queue"], of: sum, from0: true },
  { title: "Open findings", services: ["bootstrapsvc"], names: ["open_findings"], of: sum, from0: true },
  { title: "Slowest answer of a replica", names: ["answer_seconds"], of: largest, from0: true, format: seconds },
  { title: "Oldest contact with etcd or kube-apiserver", names: ["contact_age_seconds"], of: largest, from0: true, format: seconds },
];

class History extends PollSection {
  path = "/v1/status:history";
  period = 5000;

  heading(answer) {
    const minutes = answer && Math.round((length(answer) * interval(answer)) / 60);
    return [
      h("h2", {}, "Last hour"),
      answer && minutes < 59 && h("span", { class: "muted" }, `This gateway has seen ${plural(minutes, "minute")} of it.`),
    ];
  }

  body(answer) {
    const drawn = charts.map((chart) => ({ ...chart, values: valuesOf(chart, answer) })).filter(({ values }) => values.length > 0);
    return [
      h("ul", { key: "charts", class: "charts" }, drawn.map((chart) => chartView(chart, interval(answer)))),
      h("details", { key: "table", class: "fold" },
        h("summary", {}, "As a table"),
        table("Counts and lag of the last hour", ["What", ["Now", "figure"], ["Least", "figure"], ["Most", "figure"], ["Not known", "figure"]], drawn.map((chart) => {
          const { now, least, most, gaps } = textsOf(chart, interval(answer));
          return row(chart.title, {}, [chart.title, ...[now, least, most, gaps || "–"].map((content) => ({ name: "figure", content }))]);
        }))),
    ];
  }
}

const interval = (answer) => Number.parseFloat(answer.interval);
const length = ({ series }) => series[0]?.values.length ?? 0;

// valuesOf combines the series of a chart, value by value.
function valuesOf({ services, names, of }, { series }) {
  const found = series.filter(({ service, name }) => names.includes(name) && (!services || services.includes(service)));
  if (found.length === 0) return [];
  return found[0].values.map((_, place) => of(found.map(({ values }) => Number(values[place]))));
}

function textsOf({ values, format = count }, every) {
  const known = values.filter((value) => !Number.isNaN(value));
  const unknown = values.length - known.length;
  const text = (value) => (Number.isFinite(value) ? format(value) : "not known");
  return {
    now: text(values.at(-1)), least: text(Math.min(...known)), most: text(Math.max(...known)),
    gaps: unknown > 0 ? duration(Math.max(1, unknown * every)) : "",
  };
}

function chartView(chart, every) {
  const { title, values, from0 } = chart;
  const { now, least, most, gaps } = textsOf(chart, every);
  const label = `${title}: now ${now}; in the last hour from ${least} to ${most}${gaps && `; not known for ${gaps}`}`;
  const known = values.filter((value) => !Number.isNaN(value));
  const low = from0 ? 0 : Math.min(...known);
  const high = Math.max(...known);
  return h("li", { key: title },
    h("h3", {}, title),
    h("strong", {}, now),
    h("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      h("line", { class: "axis", x1: 0, x2: width, y1: height - 1, y2: height - 1 }),
      h("path", { class: "line", d: pathOf(values, { low, high }) })),
    h("p", { class: "range muted", "aria-hidden": "true" }, least === most ? `always ${least}` : `${least} to ${most}`, gaps && ` · not known for ${gaps}`));
}

// pathOf is one line for each run of values between gaps. A single value is a dot.
function pathOf(values, { low, high }) {
  const slots = Math.max(values.length, fewestSlots);
  const left = slots - values.length;
  const x = (place) => (((left + place) / (slots - 1)) * width).toFixed(1);
  const y = (value) => (high === low ? (low === 0 ? height - 2 : height / 2) : height - 2 - ((value - low) / (high - low)) * (height - 6)).toFixed(1);
  let path = "";
  values.forEach((value, place) => {
    if (Number.isNaN(value)) return;
    const starts = place === 0 || Number.isNaN(values[place - 1]);
    const ends = place === values.length - 1 || Number.isNaN(values[place + 1]);
    path += `${starts ? "M" : "L"}${x(place)} ${y(value)}`;
    if (starts && ends) path += "h0.1";
  });
  return path;
}

customElements.define("trivet-history", History);
