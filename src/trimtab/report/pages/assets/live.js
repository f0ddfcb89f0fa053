"use strict";
// A page that a server follows: new records are added to the charts, new incidents to the list.
(() => {
  const { data, drawn } = window.trimtabRun;
  if (!data.live) return;
  const list = document.getElementById("live-incidents");
  const fact = (name, text) => {
    const element = document.getElementById("fact-" + name);
    if (element) element.textContent = text;
  };
  const wait = { at: 0 };
  function reload() {
    // Not more often than every 10 s: a run that goes back and forth must not flicker.
    if (wait.at) return;
    wait.at = setTimeout(() => location.reload(), Math.max(10000 - performance.now(), 0));
  }
  const source = new EventSource("events?after=" + data.live.version);
  source.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (message.reload) { reload(); return; }
    let last = charts.state.full[1];
    for (const one of drawn) {
      let touched = false;
      for (const line of one.chart.series) {
        for (const [step, value] of message.values[line.signal] || []) {
          if (line.x.length && step <= line.x[line.x.length - 1]) continue;
          line.x.push(step);
          line.y.push(value);
          last = Math.max(last, step);
          touched = true;
          const { range } = one.chart;
          if (value !== null && range) one.chart.range = [Math.min(range[0], value), Math.max(range[1], value)];
          if (value === null) (line.nonfinite = line.nonfinite || []).push([step, step, 0]);
        }
      }
      if (touched) one.update();
    }
    charts.extend(last);
    fact("records", message.records.toLocaleString("en-US"));
    fact("state", message.ended || "running");
    for (const incident of message.incidents) {
      const head = `incident ${incident.number} ${incident.transition} at step ${message.step}`;
      list.prepend(make("li", "", `${head}: ${incident.said}; load the page again for its post-mortem`));
      while (list.children.length > 20) list.lastChild.remove();
    }
  };
})();
