"use strict";
// Runs over each other: the same charts, with a band where a run parts from the base.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const parent = document.getElementById("charts");
  let low = Infinity, high = -Infinity;
  for (const chart of data.charts) for (const { x } of chart.series) {
    if (x.length) { low = Math.min(low, x[0]); high = Math.max(high, x[x.length - 1]); }
  }
  charts.state.full = low < high ? [low, high] : [0, 1];
  charts.state.bands = data.marks;
  for (const chart of data.charts) charts.lines(parent, chart);
  charts.reset();
  charts.listen({ 0: charts.reset });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
