"use strict";
// Many runs: rows are made from JSON, as text, and sorted by who needs attention or by a column.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const body = document.getElementById("runs");
  const counts = document.getElementById("counts");
  const filter = document.getElementById("filter");
  const heads = [...body.parentElement.querySelectorAll("th")];
  const names = heads.map((head) => head.textContent);
  const lines = new Map();
  const states = ["alarm", "silent", "damaged", "watch", "ended, harmed", "running", "stopped", "ended"];
  const tones = { alarm: "alarm", silent: "warn", damaged: "warn", watch: "warn", "ended, harmed": "warn",
    running: "good" };
  const keys = { state: "order", run: "name", "tokens/s": "speed", "last record": "clock" };
  const order = { by: "state", sign: 1 };

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
      const cell = make("td", name === "why" ? "wrap" : heads[k].className);
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
    canvas.width = 240;
    canvas.height = 48;
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
      if (value === null) { ctx.fillRect(x - 1, 0, 3, 8); open = false; return; }
      const y = height - 3 - ((Math.min(Math.max(value, low), high) - low) / (high - low || 1)) * (height - 6);
      if (open) ctx.lineTo(x, y); else ctx.moveTo(x, y);
      open = true;
    });
    ctx.stroke();
  }

  function fill(entry) {
    const { cells, state, link, line } = entry;
    state.textContent = line.state;
    state.className = "tag " + (tones[line.state] || "");
    link.textContent = line.name;
    const texts = [null, null, line.loss, null, line.step === null ? "" : line.step.toLocaleString("en-US"),
      line.open ? String(line.open) : "", line.incidents ? String(line.incidents) : "", line.speed,
      line.clock ? age(Date.now() / 1000 - line.clock) : "", line.why];
    texts.forEach((text, k) => { if (text !== null && cells[k].textContent !== text) cells[k].textContent = text; });
    drawSpark(entry);
  }

  // Numbers come as text, with commas and units.
  function value({ line }) {
    const found = line[keys[order.by] || order.by];
    const number = parseFloat(String(found).replaceAll(",", ""));
    return ["run", "why"].includes(order.by) ? found : Number.isFinite(number) ? number : -Infinity;
  }

  function compare(a, b) {
    const [first, second] = [value(a), value(b)];
    return order.sign * (first < second ? -1 : Number(first > second)) || b.line.open - a.line.open ||
      a.line.name.localeCompare(b.line.name, "en", { numeric: true });
  }

  function sort() {
    const sorted = [...lines.values()].sort(compare);
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    sorted.forEach((entry, k) => {
      const { row, line } = entry;
      if (body.children[k] !== row) body.insertBefore(row, body.children[k] || null);
      const text = `${line.state} ${line.name} ${line.why}`.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    });
    const tally = {};
    for (const { line } of sorted) tally[line.state] = (tally[line.state] || 0) + 1;
    const parts = states.filter((word) => tally[word]).map((word) => `${tally[word]} ${word}`);
    counts.textContent = `${sorted.length} runs: ${parts.join("; ") || "none yet"}`;
  }

  function apply(message) {
    for (const line of message.rows) {
      let entry = lines.get(line.id);
      if (!entry) { entry = makeRow(line.id); lines.set(line.id, entry); }
      entry.line = line;
      fill(entry);
    }
    if (message.rows.length) sort();
  }

  heads.forEach((head, k) => {
    if (names[k] === "curve") return;
    const button = make("button", "", names[k]);
    button.type = "button";
    button.title = "Sort by this column";
    button.addEventListener("click", () => {
      // Numbers begin with the largest, names and states with the first.
      order.sign = order.by === names[k] ? -order.sign : head.className === "n" ? -1 : 1;
      order.by = names[k];
      for (const one of heads) one.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending");
      sort();
    });
    head.replaceChildren(button);
  });
  filter.addEventListener("input", sort);
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
