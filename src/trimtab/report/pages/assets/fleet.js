"use strict";
// Many runs: rows are made from JSON, as text, and sorted by who needs attention.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const body = document.getElementById("runs");
  const causes = document.getElementById("causes");
  const counts = document.getElementById("counts");
  const lines = new Map();
  const names = ["state", "run", "loss", "curve", "step", "goodput", "open", "incidents", "tokens/s", "last record", "why"];
  const words = {
    alarm: "alarm", silent: "silent", damaged: "damaged", watch: "watch", running: "running", ended: "ended",
  };

  function age(seconds) {
    if (!Number.isFinite(seconds)) return "";
    for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
      if (seconds >= 1.5 * size) return `${(seconds / size).toFixed(1)} ${unit} ago`;
    }
    return `${Math.max(seconds, 0).toFixed(0)} s ago`;
  }

  function makeRow(id) {
    const row = make("tr");
    const cells = names.map((name, k) => {
      const cell = make("td", [0, 1, 3].includes(k) ? "" : k === 11 ? "wrap" : "n");
      cell.dataset.name = name;
      row.append(cell);
      return cell;
    });
    const state = make("span");
    cells[0].append(state);
    const link = make("a");
    link.href = `run/${id}/`;
    cells[1].append(link);
    const canvas = make("canvas", "spark");
    canvas.width = 160;
    canvas.height = 32;
    canvas.setAttribute("aria-hidden", "true");
    cells[3].append(canvas);
    return { row, cells, state, link, canvas, line: null };
  }

  function drawSpark({ canvas, line }) {
    const ctx = canvas.getContext("2d");
    const { width, height } = canvas;
    ctx.clearRect(0, 0, width, height);
    const known = line.spark.filter((v) => v !== null);
    if (known.length < 2) return;
    // The first tenth does not set the scale: an untrained model would flatten the rest.
    const shown = known.slice(Math.floor(known.length / 10));
    const low = Math.min(...shown), high = Math.max(...shown);
    const count = line.spark.length;
    ctx.lineWidth = 2;
    ctx.strokeStyle = theme.colours.data;
    ctx.fillStyle = theme.colours.alarm;
    ctx.beginPath();
    let open = false;
    line.spark.forEach((value, i) => {
      const x = (i / Math.max(count - 1, 1)) * (width - 4) + 2;
      if (value === null) { ctx.fillRect(x - 1, 0, 2, 5); open = false; return; }
      const y = height - 3 - ((Math.min(Math.max(value, low), high) - low) / (high - low || 1)) * (height - 6);
      if (open) ctx.lineTo(x, y); else ctx.moveTo(x, y);
      open = true;
    });
    ctx.stroke();
  }

  function fill(entry) {
    const { cells, state, link, line } = entry;
    state.textContent = words[line.state] || line.state;
    state.className = "tag " + (line.state === "alarm" ? "alarm" : ["silent", "damaged", "watch"].includes(line.state) ? "warn" : "");
    link.textContent = line.name;
    const texts = [null, null, line.loss, null, line.step === null ? "" : line.step.toLocaleString("en-US"), line.goodput,
      line.open ? String(line.open) : "", line.incidents ? String(line.incidents) : "", line.speed,
      line.clock ? age(Date.now() / 1000 - line.clock) : "", line.why];
    texts.forEach((text, k) => { if (text !== null && cells[k].textContent !== text) cells[k].textContent = text; });
    drawSpark(entry);
  }

  function sort() {
    const sorted = [...lines.values()].sort((a, b) =>
      a.line.order - b.line.order || b.line.open - a.line.open || a.line.name.localeCompare(b.line.name, "en", { numeric: true }));
    sorted.forEach((entry, k) => { if (body.children[k] !== entry.row) body.insertBefore(entry.row, body.children[k] || null); });
    const tally = {};
    for (const { line } of sorted) tally[line.state] = (tally[line.state] || 0) + 1;
    const parts = Object.keys(words).filter((word) => tally[word]).map((word) => `${tally[word]} ${word}`);
    counts.textContent = `${sorted.length} runs: ${parts.join(", ") || "none yet"}`;
  }

  function apply(message) {
    for (const line of message.rows) {
      let entry = lines.get(line.id);
      if (!entry) { entry = makeRow(line.id); lines.set(line.id, entry); }
      entry.line = { spark: [], ...entry.line, ...line };
      fill(entry);
    }
    if (message.rows.length) sort();
    if (message.causes) {
      document.getElementById("classes").textContent = message.classes;
      causes.replaceChildren(...message.causes.map((one) => {
        const row = make("tr");
        for (const [name, value, kind] of [["cause", one.cause, "wrap"], ["incidents", one.incidents, "n"], ["runs", one.runs, "n"], ["open", one.open, "n"]]) {
          const cell = make("td", kind, String(value));
          cell.dataset.name = name;
          row.append(cell);
        }
        return row;
      }));
    }
  }

  apply(data);
  sort();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme.read(); for (const entry of lines.values()) drawSpark(entry); });
  setInterval(() => { for (const entry of lines.values()) fill(entry); }, 5000);
  const source = new EventSource("events?after=" + data.version);
  source.onmessage = (event) => apply(JSON.parse(event.data));
  source.onerror = () => { counts.textContent = "the server does not answer; trying again"; };
  source.onopen = sort;
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
