// Draws the page's figures. Everything is in this file: plotly's bundle and the figures, both packed with gzip.
(async () => {
  "use strict";

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  // As tasks/figures/page.py: names of roles become colours; values are left alone.
  function filled(value, roles, data) {
    if (typeof value === "string") return roles[value] ?? value;
    if (Array.isArray(value)) return value.map((one) => filled(one, roles, data));
    if (!value || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) =>
      [k, data.includes(k) && (v === null || Array.isArray(v) || typeof v !== "object") ? v : filled(v, roles, data)]));
  }

  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  root.dataset.theme = dark.matches ? "dark" : "light";

  const plots = [...document.querySelectorAll(".plot")];
  let known;
  if (plots.length) try {
    const bundle = document.createElement("script");
    bundle.textContent = await unpacked("bundle");
    document.head.append(bundle);
    known = JSON.parse(await unpacked("figures"));
  } catch (error) {
    for (const plot of plots) {
      plot.classList.add("failed");
      plot.textContent = `${plot.getAttribute("aria-label")} (This browser cannot draw the figure: ${error}.)`;
    }
    return;
  }
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  function draw(plot, name) {
    const { roles, template } = known.themes[name];
    const figure = filled(known.figures[Number(plot.dataset.figure)], roles, known.data_keys);
    if (figure.layout.height) plot.style.height = `${figure.layout.height}px`;
    return Plotly.react(plot, figure.data, { template, ...figure.layout }, config);
  }

  function show(name) {
    root.dataset.theme = name;
    return Promise.all(plots.map((plot) => draw(plot, name)));
  }

  // One after the other, so that the first figures are there before the last ones are drawn.
  for (const plot of plots) {
    await draw(plot, root.dataset.theme);
    await new Promise((done) => setTimeout(done));
  }
  document.getElementById("theme").addEventListener("click", () => show(root.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => show(dark.matches ? "dark" : "light"));

  let before = root.dataset.theme;
  function fit() { for (const plot of plots) Plotly.Plots.resize(plot); }
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    for (const folded of document.querySelectorAll("section > details")) folded.open = true;
    root.classList.add("printing"); // as wide as the paper
    show("light");
    fit();
  });
  addEventListener("afterprint", () => { root.classList.remove("printing"); show(before); fit(); });

  for (const numbers of document.querySelectorAll("details.numbers")) {
    numbers.addEventListener("toggle", () => {
      const place = numbers.querySelector("div");
      if (numbers.open && !place.firstChild) place.append(table(known.figures[Number(numbers.dataset.figure)]));
    });
  }

  const NAMES = ["x", "open", "high", "low", "close", "y", "z"];
  function table(figure) {
    const rows = figure.data.flatMap(values);
    const columns = ["series", ...NAMES.filter((name) => rows.some((row) => name in row))];
    const made = document.createElement("table");
    line(made, "th", columns);
    for (const row of rows) line(made, "td", columns.map((name) => row[name] ?? ""));
    return made;
  }
  function values(trace) {
    if (trace.type === "heatmap") {
      return trace.z.flatMap((row, i) => row.map((z, j) => ({ series: "", x: trace.x[j], y: trace.y[i], z })));
    }
    const rows = (trace.x ?? []).map((x, i) => ({
      series: trace.name ?? "",
      ...Object.fromEntries(NAMES.filter((name) => Array.isArray(trace[name])).map((name) => [name, trace[name][i]])),
    }));
    return rows.filter((row) => row.x !== null);
  }
  function line(made, kind, cells) {
    const row = made.insertRow();
    for (const text of cells) {
      const cell = document.createElement(kind);
      cell.textContent = text;
      row.append(cell);
    }
  }
  root.dataset.drawn = "yes"; // signals the end to tests and printing programs
})();
