"use strict";
// The page of one run: timeline, charts, keys.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const parent = document.getElementById("charts");
  const { colours } = theme;
  const drawn = [];

  function extent() {
    let low = Infinity, high = -Infinity;
    for (const chart of data.charts) {
      const all = chart.kind === "heat" ? [{ x: [...chart.x, chart.end] }] : chart.series.flatMap((s) => [s, ...(s.gone || [])]);
      for (const { x } of all) if (x.length) { low = Math.min(low, x[0]); high = Math.max(high, x[x.length - 1]); }
      for (const one of chart.series || []) for (const [, last] of one.nonfinite || []) high = Math.max(high, last);
    }
    return low < high ? [low, high] : [low === Infinity ? 0 : low, (low === Infinity ? 0 : low) + 1];
  }

  // One row each: incidents with their numbers, attempts, discarded steps, events.
  function timeline() {
    const rows = ["incidents", ...data.lanes.map((lane) => lane.title)];
    if (data.flags.length) rows.push("events");
    const box = charts.build(parent, "timeline");
    box.label = `timeline: ${data.incidents.length} incidents, ${data.flags.length} events`;
    const each = 17;
    const height = rows.length * each + 30;
    const text = (ctx, words, x, y) => {
      ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.textBaseline = "middle";
      ctx.textAlign = "left";
      ctx.fillText(words, x, y);
    };
    const draw = (u) => {
      const { ctx, bbox } = u;
      const tall = bbox.height / rows.length;
      const place = (x) => u.valToPos(x, "x", true);
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      const bar = (first, last, row, fill) => {
        const left = place(first);
        ctx.fillStyle = fill;
        ctx.fillRect(left, bbox.top + row * tall + tall * 0.22, Math.max(place(last) - left, 2 * devicePixelRatio), tall * 0.56);
      };
      let free = -1e9;
      for (const incident of data.incidents) {
        const fill = colours[incident.tone];
        bar(incident.first, incident.last, 0, fill);
        let at = Math.max(place(incident.last), place(incident.first) + 2) + 4 * devicePixelRatio;
        const wide = 8 * devicePixelRatio * String(incident.number).length;
        if (at + wide > bbox.left + bbox.width) at = place(incident.first) - wide - 2 * devicePixelRatio;
        if (at > free) {
          ctx.fillStyle = fill;
          text(ctx, String(incident.number), at, bbox.top + tall / 2);
          free = at + 16 * devicePixelRatio;
        }
      }
      data.lanes.forEach((lane, k) => {
        for (const [first, last, kind] of lane.spans) {
          bar(first, last, k + 1, [colours.data, colours.gone, colours.warn][kind]);
        }
      });
      for (const [step] of data.flags) bar(step, step, rows.length - 1, colours.mute);
      ctx.restore();
    };
    const near = (u, left, top) => {
      const row = Math.floor(top / (u.over.clientHeight / rows.length));
      const x = u.posToVal(left, "x");
      const reach = u.posToVal(left + 6, "x") - x;
      const hit = (first, last) => x >= first - reach && x <= last + reach;
      if (rows[row] === "incidents") {
        const found = data.incidents.find((i) => hit(i.first, i.last));
        return found ? `incident ${found.number}, steps ${found.first} to ${found.last}, ${found.text}` : "";
      }
      if (rows[row] === "events") {
        return data.flags.filter(([step]) => hit(step, step)).slice(0, 3)
          .map(([step, kind, words]) => `step ${step} ${kind}: ${words}`).join("   ").slice(0, 220);
      }
      const lane = data.lanes[row - 1];
      const found = lane && lane.spans.find(([first, last]) => hit(first, last));
      if (!found) return "";
      const what = ["attempt " + found[3], `attempt ${found[3]}, repeated later`, "discarded"][found[2]];
      return `${what}, steps ${found[0]} to ${found[1]}`;
    };
    const opts = charts.options(box, height, {
      scales: { x: { time: false }, y: { range: [0, rows.length] } },
      series: [{}, { width: 0, points: { show: false } }],
      axes: [charts.xAxis(), {
        stroke: () => colours.mute, grid: { show: false }, ticks: { show: false }, size: charts.axisWidth(), gap: 4,
        font: "11px system-ui, sans-serif", splits: () => rows.map((_, r) => rows.length - r - 0.5),
        values: (u, splits) => splits.map((v) => rows[Math.round(rows.length - v - 0.5)]),
      }],
      hooks: {
        drawAxes: [draw], setSelect: [charts.onSelect],
        setCursor: [(u) => {
          const { left, top } = u.cursor;
          box.value.textContent = left < 0 || top < 0 ? "" : near(u, left, top);
        }],
      },
    });
    const [low, high] = charts.state.full;
    charts.add(box, opts, [[low, high], [null, null]], []);
  }

  charts.state.full = extent();
  charts.state.bands = data.incidents;
  timeline();
  let others = null;
  for (const chart of data.charts) {
    if (chart.other) {
      if (!others) {
        others = make("details");
        const summary = make("summary");
        summary.append(make("h3", "", `Other signals (${data.charts.filter((c) => c.other).length})`));
        others.append(summary);
        parent.append(others);
        // Charts inside a closed element have no width: they are drawn when it opens.
        others.addEventListener("toggle", () => {
          if (!others.open || others.dataset.drawn) return;
          others.dataset.drawn = "1";
          const [first, last] = charts.current();
          for (const one of data.charts.filter((c) => c.other)) drawn.push(charts.lines(others, one));
          charts.zoom(first, last);
        });
      }
      continue;
    }
    if (chart.kind === "heat") charts.heat(parent, chart); else drawn.push(charts.lines(parent, chart));
  }
  charts.reset();

  const log = document.getElementById("log");
  let at = -1;
  function show(index) {
    if (!data.incidents.length) return;
    at = (index + data.incidents.length) % data.incidents.length;
    const { first, last } = data.incidents[at];
    const room = Math.max((last - first) * 0.7, 40);
    charts.zoom(first - room, last + room);
  }
  function toggleLog() {
    const [first, last] = charts.current();
    const isLog = log.getAttribute("aria-pressed") !== "true";
    log.setAttribute("aria-pressed", String(isLog));
    for (const one of drawn) one.setLog(isLog || one.chart.log);
    charts.zoom(first, last);
  }

  charts.listen({ n: () => show(at + 1), p: () => show(at - 1), l: toggleLog });
  document.getElementById("whole").addEventListener("click", charts.reset);
  log.addEventListener("click", toggleLog);
  for (const button of document.querySelectorAll("button.zoom")) {
    button.addEventListener("click", () => {
      show(data.incidents.findIndex((i) => String(i.number) === button.dataset.incident));
      parent.scrollIntoView({ block: "start" });
    });
  }

  function openTarget() {
    const target = /^#incident-\d+$/.test(location.hash) && document.getElementById(location.hash.slice(1));
    if (target) { target.open = true; target.scrollIntoView(); }
  }
  window.addEventListener("hashchange", openTarget);
  for (const link of document.querySelectorAll('a[href^="#incident-"]')) link.addEventListener("click", () => setTimeout(openTarget));
  openTarget();
  window.addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
  window.trimtabRun = { data, drawn };
})();
