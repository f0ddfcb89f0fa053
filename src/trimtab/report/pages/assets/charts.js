"use strict";
// Charts that share one axis of steps: bands for incidents, grey for what was repeated, marks
// for values that are not finite. Zooming one zooms all.
const charts = (() => {
  const plots = [];
  const state = { full: null, view: null, bands: [] };
  const sync = uPlot.sync("steps");
  const narrow = () => window.innerWidth <= 700;
  const axisWidth = () => (narrow() ? 56 : 66);
  const { colours } = theme;
  const palette = ["c1", "c3", "c4", "c5", "c6", "c2"];

  function build(parent, title, aside) {
    const figure = make("figure", "chart");
    const caption = make("figcaption");
    caption.append(make("span", "name", title));
    const beside = make("span", "aside", aside);
    caption.append(beside);
    const keys = make("span", "keys");
    const value = make("span", "value");
    caption.append(keys, value);
    const plot = make("div", "plot");
    figure.append(caption, plot);
    parent.append(figure);
    return { figure, aside: beside, keys, value, plot };
  }

  function drawBands(u) {
    const { ctx, bbox } = u;
    for (const band of state.bands) {
      const left = u.valToPos(band.first, "x", true);
      const right = Math.max(u.valToPos(band.last, "x", true), left + 2 * devicePixelRatio);
      if (right < bbox.left || left > bbox.left + bbox.width) continue;
      ctx.fillStyle = colours["band-" + band.tone];
      const from = Math.max(left, bbox.left);
      ctx.fillRect(from, bbox.top, Math.min(right, bbox.left + bbox.width) - from, bbox.height);
    }
  }

  // Lines of earlier attempts are drawn by hand: their steps overlap those of the line that counts.
  function drawGone(u, series) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineWidth = devicePixelRatio;
    ctx.strokeStyle = colours.gone;
    for (const one of series) {
      for (const part of one.gone || []) {
        ctx.beginPath();
        let open = false;
        part.x.forEach((x, i) => {
          if (part.y[i] === null) { open = false; return; }
          const at = [u.valToPos(x, "x", true), u.valToPos(part.y[i], "y", true)];
          if (open) ctx.lineTo(...at); else ctx.moveTo(...at);
          open = true;
        });
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  function drawMarks(u, series) {
    const { ctx, bbox } = u;
    const size = 5 * devicePixelRatio;
    ctx.save();
    for (const one of series) {
      for (const [first, last, isGone] of one.nonfinite || []) {
        ctx.fillStyle = isGone ? colours.gone : colours.alarm;
        const left = Math.max(u.valToPos(first, "x", true), bbox.left);
        const right = Math.min(u.valToPos(last, "x", true), bbox.left + bbox.width);
        if (right < bbox.left || left > bbox.left + bbox.width) continue;
        ctx.fillRect(left, bbox.top, Math.max(right - left, 2 * devicePixelRatio), size);
      }
    }
    // A triangle where the line leaves the chart.
    const { min, max } = u.scales.y;
    const xs = u.data[0];
    ctx.fillStyle = colours.mute;
    for (let k = 1; k < u.data.length; k++) {
      const ys = u.data[k];
      let side = 0;
      for (let i = 0; i < xs.length; i++) {
        const y = ys[i];
        if (y === null || y === undefined) continue;
        const now = y > max ? 1 : y < min ? -1 : 0;
        const isNew = now !== 0 && now !== side;
        side = now;
        const x = u.valToPos(xs[i], "x", true);
        if (!isNew || x < bbox.left || x > bbox.left + bbox.width) continue;
        const edge = now > 0 ? bbox.top : bbox.top + bbox.height;
        ctx.beginPath();
        ctx.moveTo(x, edge);
        ctx.lineTo(x - size / 2, edge + now * size);
        ctx.lineTo(x + size / 2, edge + now * size);
        ctx.fill();
      }
    }
    ctx.restore();
  }

  // 1, 10, 100 where the axis is long; 1, 2, 5, 10 where it is short.
  function logSplits(u, axis, min, max) {
    const decades = Math.log10(max / min);
    const every = Math.max(Math.ceil(decades / 5), 1);
    const steps = decades > 2 ? [1] : decades > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
    const found = [];
    for (let e = Math.floor(Math.log10(min)); e <= Math.ceil(Math.log10(max)); e++) {
      if (decades > 2 && e % every !== 0) continue;
      for (const step of steps) {
        const value = Number(`${step}e${e}`);
        if (value >= min && value <= max) found.push(value);
      }
    }
    return found.length ? found : [min, max];
  }

  const stepText = (value) => value.toLocaleString("en-US");

  function xAxis() {
    return {
      stroke: () => colours.mute, grid: { show: false }, ticks: { stroke: () => colours.rule, size: 4 },
      size: 22, gap: 2, font: "11px system-ui, sans-serif", space: narrow() ? 70 : 90,
      values: (u, splits) => splits.map((v) => (Number.isInteger(v) ? stepText(v) : "")),
    };
  }

  function options(box, height, extra) {
    return {
      width: Math.max(box.plot.clientWidth, 120), height, legend: { show: false }, padding: [6, 20, 0, 0],
      cursor: {
        sync: { key: sync.key, scales: ["x", null] }, y: false,
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => { reset(); return null; } },
        points: { size: 5 },
      },
      ...extra,
    };
  }

  const onSelect = (u) => {
    if (u.select.width < 4) return;
    const first = u.posToVal(u.select.left, "x");
    const last = u.posToVal(u.select.left + u.select.width, "x");
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    zoom(first, last);
  };

  function create(box, opts, data) {
    const u = new uPlot(opts, data, box.plot);
    const canvas = u.root.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", box.label || "");
    sync.sub(u);
    return u;
  }

  function add(box, opts, data, series) {
    const entry = { u: create(box, opts, data), box, height: opts.height, series };
    plots.push(entry);
    return entry;
  }

  function joined(series) {
    if (series.length === 1) return [series[0].x, series[0].y];
    const data = uPlot.join(series.map((one) => [one.x, one.y]), series.map(() => [2]));
    return data;
  }

  function nearest(xs, ys, at) {
    // Joined series have gaps where only another one has a value.
    for (let d = 0; d < 40; d++) {
      if (ys[at - d] !== null && ys[at - d] !== undefined) return ys[at - d];
      if (ys[at + d] !== null && ys[at + d] !== undefined) return ys[at + d];
    }
    return null;
  }

  function lines(parent, chart) {
    const view = { log: chart.log };
    const asideText = () => [chart.note, view.log ? "log axis" : ""].filter(Boolean).join(", ");
    const box = build(parent, chart.title, asideText());
    const aside = box.aside;
    const many = chart.series.length > 1;
    const shift = chart.total ? 1 : 0;
    const first = chart.total === "base" ? "c2" : "ink";
    const colour = (k) => (chart.series[k].limit ? "gone" : k < shift ? first : many ? palette[(k - shift) % 6] : "data");
    if (many) {
      chart.series.forEach((one, k) => {
        if (one.limit) return;
        const key = make("span");
        key.append(make("i", colour(k).replace("c", "k")), one.label);
        box.keys.append(key);
      });
    }
    const data = joined(chart.series);
    const finite = chart.series[0].y.filter((v) => v !== null);
    const low = finite.reduce((a, b) => Math.min(a, b), Infinity);
    const high = finite.reduce((a, b) => Math.max(a, b), -Infinity);
    box.label = `${chart.title}: ${shortNumber(low)} to ${shortNumber(high)}, last ${shortNumber(finite[finite.length - 1])}`;
    const range = (u, min, max) => {
      // uPlot asks before it has set the new steps: they are in the state.
      const [first, last] = state.view || state.full;
      const zoomed = first > state.full[0] || last < state.full[1];
      if (!zoomed && chart.range && view.log === chart.log) [min, max] = chart.range;
      if (zoomed) {
        for (const one of chart.series) for (const part of one.gone || []) part.x.forEach((x, i) => {
          const y = part.y[i];
          if (x < first || x > last || y === null || (view.log && y <= 0)) return;
          min = min === null ? y : Math.min(min, y);
          max = max === null ? y : Math.max(max, y);
        });
      }
      if (!Number.isFinite(min) || !Number.isFinite(max)) return view.log && positive ? [1, 10] : [0, 1];
      // uPlot has no ticks beyond 1e32, nor between numbers that are closer than 1e-28.
      if (view.log && positive) {
        min = Math.min(Math.max(min, 1e-28), 1e28);
        max = Math.min(Math.max(max, min), 1e28);
        const room = Math.pow(max / min, 0.05) || 1.1;
        return max > min ? [min / room, max * room] : [min / 2, max * 2];
      }
      min = Math.min(Math.max(min, -1e28), 1e28);
      max = Math.min(Math.max(max, -1e28), 1e28);
      const pad = Math.max((max - min) * 0.06 || Math.abs(max) * 0.1 || 1, 1e-26);
      return [min - pad, max + pad];
    };
    const positive = low > 0;
    const height = plots.length < 2 ? 220 : narrow() ? 120 : many ? 150 : 132;
    const opts = () => options(box, height, {
      scales: { x: { time: false }, y: { distr: view.log && positive ? 3 : 1, range } },
      series: [{}, ...chart.series.map((one, k) => ({
        label: one.label, width: one.points ? 0 : k === 0 || !chart.total ? 1.25 : 1,
        stroke: () => colours[colour(k)], spanGaps: Boolean(one.limit),
        points: one.limit ? { show: false } : one.points ? { show: true, size: 5, stroke: () => colours[colour(k)] }
          : { show: one.x.length < 40, size: 4 },
      }))],
      axes: [xAxis(), {
        stroke: () => colours.mute, grid: { stroke: () => colours.rule, width: 0.5 }, ticks: { show: false },
        size: axisWidth(), gap: 4, font: "11px system-ui, sans-serif", space: 26,
        values: (u, splits) => splits.map((v) => (v === null ? "" : shortNumber(v))),
        ...(view.log && positive ? { splits: logSplits, filter: (u, splits) => splits } : {}),
      }],
      hooks: {
        drawClear: [drawBands], drawAxes: [(u) => drawGone(u, chart.series)],
        draw: [(u) => drawMarks(u, chart.series)], setSelect: [onSelect],
        setCursor: [(u) => {
          const at = u.cursor.idx;
          if (at === null || at === undefined) { box.value.textContent = ""; return; }
          const parts = chart.series.filter((one) => !one.limit).map((one, k) => {
            const found = shortNumber(nearest(u.data[0], u.data[k + 1], at));
            return many ? `${one.label} ${found || "-"}` : found;
          });
          box.value.textContent = `step ${stepText(u.data[0][at])}   ${parts.slice(0, 7).join("   ")}`;
        }],
      },
    });
    const entry = add(box, opts(), data, chart.series);
    const setLog = (log) => {
      if (!positive || log === view.log) return;
      view.log = log;
      aside.textContent = asideText();
      const before = entry.u;
      sync.unsub(before);
      entry.u = create(box, opts(), before.data);
      before.destroy();
    };
    const update = () => entry.u.setData(joined(chart.series), false);
    return { entry, chart, view, setLog, update };
  }

  function heat(parent, chart) {
    const box = build(parent, chart.title, chart.note || "log2 of value / median of the row: blue lower, red higher");
    const count = chart.rows.length;
    const height = Math.min(Math.max(count * 14, 60), 420) + 28;
    box.label = `${chart.title}: heat map of ${count} rows`;
    const edges = [...chart.x, chart.end];
    const every = Math.max(Math.ceil(count / (height / 14)), 1);
    const draw = (u) => {
      const { ctx, bbox } = u;
      const tall = bbox.height / count;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      chart.cells.forEach((row, r) => {
        const top = Math.round(bbox.top + r * tall);
        const bottom = Math.round(bbox.top + (r + 1) * tall);
        row.forEach((value, c) => {
          if (value === null || value === 0) return;
          const left = Math.floor(u.valToPos(edges[c], "x", true));
          const right = Math.ceil(u.valToPos(edges[c + 1], "x", true));
          if (right < bbox.left || left > bbox.left + bbox.width) return;
          ctx.globalAlpha = value === "x" ? 1 : Math.min(Math.abs(value) / 3, 1);
          ctx.fillStyle = value === "x" ? colours.ink : value > 0 ? colours.alarm : colours.data;
          ctx.fillRect(left, top, Math.max(right - left, 1), bottom - top - (tall > 6 ? 1 : 0));
        });
      });
      ctx.restore();
    };
    const opts = options(box, height, {
      scales: { x: { time: false }, y: { range: [0, count] } },
      series: [{}, { show: true, width: 0, points: { show: false } }],
      axes: [xAxis(), {
        stroke: () => colours.mute, grid: { show: false }, ticks: { show: false }, size: axisWidth(), gap: 4,
        font: "11px system-ui, sans-serif",
        splits: () => chart.rows.map((_, r) => count - r - 0.5).filter((_, r) => r % every === 0),
        values: (u, splits) => splits.map((v) => {
          const name = chart.rows[Math.round(count - v - 0.5)];
          const most = narrow() ? 7 : 10;
          return name.length > most ? "…" + name.slice(1 - most) : name;
        }),
      }],
      hooks: {
        drawAxes: [draw], setSelect: [onSelect],
        setCursor: [(u) => {
          const { left, top, idx } = u.cursor;
          if (left < 0 || idx === null || idx === undefined) { box.value.textContent = ""; return; }
          const x = u.posToVal(left, "x");
          let c = chart.x.findIndex((v) => v > x) - 1;
          if (c < 0) c = chart.x.length - 1;
          const r = top >= 0 ? Math.min(Math.floor(top / (u.over.clientHeight / count)), count - 1) : -1;
          if (r < 0) { box.value.textContent = `step ${stepText(chart.x[c])}`; return; }
          const value = chart.cells[r][c];
          const shown = value === "x" ? "not finite" : value === null ? "-" : (value > 0 ? "+" : "") + value;
          box.value.textContent = `step ${stepText(chart.x[c])}   ${chart.rows[r]} ${shown}`;
        }],
      },
    });
    return add(box, opts, [chart.x, chart.x.map(() => null)], []);
  }

  function apply(first, last) {
    state.view = [first, last];
    for (const { u } of plots) u.setScale("x", { min: first, max: last });
  }

  function zoom(first, last) {
    const [low, high] = state.full;
    const width = Math.min(Math.max(last - first, 4), high - low);
    first = Math.min(Math.max(first, low), high - width);
    apply(first, first + width);
  }

  function reset() { apply(state.full[0], state.full[1]); }

  // New records: a chart that shows the whole run goes on showing it.
  function extend(last) {
    const [low, high] = state.full;
    const isWhole = state.view[0] === low && state.view[1] === high;
    state.full = [low, Math.max(high, last)];
    if (isWhole) reset(); else apply(...state.view);
  }

  function current() { return state.view; }

  function resize() {
    for (const { u, box, height } of plots) {
      const width = Math.max(box.plot.clientWidth, 120);
      if (width !== u.width) u.setSize({ width, height });
    }
  }

  function redraw() { theme.read(); for (const { u } of plots) u.redraw(false, true); }

  function move(share) {
    const [first, last] = state.view;
    zoom(first + share * (last - first), last + share * (last - first));
  }

  function scale(factor) {
    const [first, last] = state.view;
    const middle = (first + last) / 2, half = (last - first) * factor / 2;
    zoom(middle - half, middle + half);
  }

  function listen(more) {
    const keys = {
      0: reset, ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
      "+": () => scale(0.6), "=": () => scale(0.6), "-": () => scale(1 / 0.6), ...more,
    };
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target instanceof HTMLElement && event.target.closest("input, select, textarea, .scroll")) return;
      const act = keys[event.key];
      if (act) { event.preventDefault(); act(); }
    });
  }

  window.addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Paper is white whatever the screen is.
  matchMedia("print").addEventListener("change", redraw);

  return { build, add, options, xAxis, onSelect, lines, heat, zoom, reset, extend, current, listen, state, axisWidth };
})();
