// Draws the figures of a calibseg report as SVG, filters, sorts, and shows the worst cases. No library, no network.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const methods = new Map(data.methods.map((m) => [m.name, m]));
  const off = { places: new Set(), bases: new Set(), calibrators: new Set() };
  const $ = (id) => document.getElementById(id);

  // ---- small tools -------------------------------------------------------------------------------------------------
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "text") node.textContent = value;
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== false && value != null) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  };
  const svg = (tag, attributes = {}, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "text") node.textContent = value;
      else if (value !== false && value != null) node.setAttribute(key, typeof value === "number" ? +value.toFixed(2) : value);
    }
    node.append(...children);
    return node;
  };
  const show = (value) => {
    if (value == null || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && size < 0.0005) return value.toExponential(1);
    return value.toFixed(size < 0.1 ? 4 : size < 10 ? 3 : size < 1000 ? 1 : 0);
  };
  const dark = () => {
    const theme = document.documentElement.dataset.theme;
    if (window.matchMedia("print").matches) return false;
    return theme ? theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  };
  // A colour chosen for white paper, brightened on a dark ground until its contrast is at least 3 : 1.
  const luminance = (rgb) => rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ink = (colour) => {
    if (!dark()) return colour;
    let rgb = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    if (rgb[0] + rgb[1] + rgb[2] < 60) return "rgb(240 240 240)"; // black stays the plainest of all, apart from the greys
    for (let i = 0; (luminance(rgb) + 0.05) / 0.064 < 3.2 && i < 30; i++) rgb = rgb.map((v) => v + (255 - v) * 0.08);
    return `rgb(${rgb.map(Math.round).join(" ")})`;
  };
  const colourOf = (name) => ink(methods.get(name)?.colour ?? "#0072b2");
  const labelOf = (name) => methods.get(name)?.label ?? name ?? "";
  const FEW = 8, MANY = 16, TOP = 20; // methods, beyond which a figure says less about each, or shows the best
  const whole = new Set(); // figures that show all methods because the reader asked
  const looks = (name) => { const hollow = methods.get(name)?.hollow, colour = colourOf(name); return { fill: hollow ? "var(--card)" : colour, stroke: hollow ? colour : "var(--card)", "stroke-width": hollow ? 1.6 : 0.8 }; };
  // Long names lose their middle, and never so much that two become the same.
  const shortened = (names, most) => {
    for (let room = most; ; room += 4) {
      const found = names.map((name) => (name.length <= room ? name : `${name.slice(0, Math.ceil(room / 2) - 1)}…${name.slice(-Math.floor(room / 2))}`));
      if (new Set(found).size === new Set(names).size) return found;
    }
  };
  const rowNames = (rows, width) => {
    const names = shortened(rows.map((row) => labelOf(row.method)), Math.max(12, Math.floor((width * 0.45 - 24) / 6.8)));
    return { names, left: 24 + 6.8 * Math.max(...names.map((name) => name.length)) };
  };
  const DASH = { solid: null, dashed: "6 3.5", dotted: "1.5 3", dashdot: "7 3 1.5 3" };
  const visible = (name, place) => {
    if (place != null && off.places.has(place)) return false;
    const m = methods.get(name);
    return !m || !(off.bases.has(m.base) || off.calibrators.has(m.calibrator));
  };
  const corners = (n, r, turn = 0) => Array.from({ length: n }, (_, i) => [r * Math.sin((2 * Math.PI * i) / n + turn), -r * Math.cos((2 * Math.PI * i) / n + turn)]);
  const marker = (kind, x, y, r, attributes) => {
    const poly = (points) => svg("polygon", { points: points.map(([a, b]) => `${(x + a * r).toFixed(1)},${(y + b * r).toFixed(1)}`).join(" "), ...attributes });
    switch (kind) {
      case "s": return svg("rect", { x: x - r * 0.88, y: y - r * 0.88, width: r * 1.76, height: r * 1.76, ...attributes });
      case "^": return poly([[0, -1.15], [1.1, 0.85], [-1.1, 0.85]]);
      case "v": return poly([[0, 1.15], [1.1, -0.85], [-1.1, -0.85]]);
      case ">": return poly([[1.15, 0], [-0.85, 1.1], [-0.85, -1.1]]);
      case "<": return poly([[-1.15, 0], [0.85, 1.1], [0.85, -1.1]]);
      case "d": return poly([[0, -1.4], [0.8, 0], [0, 1.4], [-0.8, 0]]);
      case "p": return poly(corners(5, 1.15));
      case "h": return poly(corners(6, 1.15));
      case "H": return poly(corners(6, 1.15, Math.PI / 6));
      case "*": return poly(corners(10, 1.35).map(([a, b], i) => (i % 2 ? [a * 0.45, b * 0.45] : [a, b])));
      case "D": return poly([[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]]);
      case "P": return poly([[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]]);
      case "X": return poly([[-1.1, -0.6], [-0.6, -1.1], [0, -0.5], [0.6, -1.1], [1.1, -0.6], [0.5, 0], [1.1, 0.6], [0.6, 1.1], [0, 0.5], [-0.6, 1.1], [-1.1, 0.6], [-0.5, 0]]);
      default: return svg("circle", { cx: x, cy: y, r, ...attributes });
    }
  };

  // ---- the tip -----------------------------------------------------------------------------------------------------
  const tip = $("tip");
  const tell = (event, text) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
    const y = event.clientY + 16 + box.height > window.innerHeight ? event.clientY - box.height - 12 : event.clientY + 16;
    tip.style.left = `${Math.max(8, x)}px`;
    tip.style.top = `${Math.max(8, y)}px`;
  };
  const hush = () => { tip.hidden = true; };
  const hover = (node, text) => {
    node.addEventListener("pointermove", (event) => tell(event, text));
    node.addEventListener("pointerleave", hush);
    return node;
  };

  // ---- scales and axes ---------------------------------------------------------------------------------------------
  const nice = (low, high, count, least = 0) => {
    const rough = Math.max(least, (high - low) / Math.max(1, count));
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, least ? 5 : 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
    const ticks = [];
    for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) ticks.push(Math.abs(t) < step * 1e-9 ? 0 : t);
    return { ticks, digits: Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9) + (step / power === 2.5 ? 1 : 0))) };
  };
  const extent = (values, axis, pad = 0.06) => {
    const known = values.filter((v) => v != null && Number.isFinite(v));
    if (!known.length) return [axis.min ?? 0, axis.max ?? 1];
    let low = axis.min ?? Math.min(...known), high = axis.max ?? Math.max(...known);
    if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
    const room = (high - low) * pad;
    return [axis.min ?? low - room, axis.max ?? high + room];
  };
  const scale = ([a, b], [c, d]) => (v) => c + ((v - a) / (b - a)) * (d - c);

  // A name stands to the right of its point, or to the left where the panel ends.
  const beside = (px, py, text, inner) => {
    const width = 6.4 * text.length, right = px + 9 + width <= inner.right;
    return { x: right ? px + 9 : Math.max(inner.left, px - 9 - width), y: py - 7, from: py, text, width };
  };

  // Panels share the width of their figure: as many columns as fit, in rows of equal length.
  const grid = (room, count, least, most) => {
    const fit = Math.max(1, Math.min(count, Math.floor((room + 18) / (least + 18))));
    const columns = Math.ceil(count / Math.ceil(count / fit));
    return { columns, width: Math.round(Math.min(most, (room - 18 * (columns - 1)) / columns)) };
  };
  const alone = (panel) => data.places.length === 1 && panel.title === panel.place;
  const panelBox = (panel, note) => {
    const box = make("div", { class: "panel" });
    if (panel.title && !(alone(panel) && !note)) box.append(make("h4", {}, make("b", { text: shownTitle(panel.title) }), note ? make("span", { text: note }) : ""));
    return box;
  };
  const shownTitle = (title) => labelOf(title);
  const spread = (panels, { columns, width }, one) => Object.assign(panels.map((panel) => one(panel, width)), { columns });

  // ---- kinds of figures --------------------------------------------------------------------------------------------
  const lines = (figure, panels, room) => {
    const used = new Map();
    const all = (pick) => panels.flatMap((p) => p.series.flatMap((s) => s.points.flatMap(pick)));
    const yValues = (p) => [p.y, p.low, p.high], xValues = (p) => [p.x, p.x_low, p.x_high];
    const shared = figure.own_scales ? null : { x: extent(all(xValues), figure.x), y: extent(all(yValues), figure.y) };
    const { columns, width } = figure.wide ? grid(room, panels.length, 480, 1100) : grid(room, panels.length, 236, 430);
    const height = figure.wide ? Math.round(Math.min(400, 190 + width * 0.2)) : Math.round(figure.histogram ? width * 0.78 + 60 : 150 + width * 0.22);
    const crowd = panels.reduce((n, p) => Math.max(n, p.series.length), 0);
    const boxes = panels.map((panel) => {
      const points = panel.series.flatMap((s) => s.points);
      const ticks = panel.ticks;
      const right = panel.series.some((s) => s.end) ? 74 : 14;
      const slanted = ticks && Math.max(...ticks.map((text) => text.length)) * 6.2 > (width - 75) / ticks.length;
      const inner = { left: figure.y.label ? 58 : 42, right: width - right, top: 10, bottom: height - (figure.x.label ? 40 : 26) - (slanted ? 30 : 0) };
      const foot = figure.histogram ? 44 : 0;
      const ex = ticks ? [-0.35, ticks.length - 0.65] : shared ? shared.x : extent(points.flatMap(xValues), figure.x);
      const ey = shared ? shared.y : extent(points.flatMap(yValues), figure.y);
      const x = scale(ex, [inner.left, inner.right]), y = scale(ey, [inner.bottom - foot, inner.top]);
      const bars = panel.series.filter((s) => !s.ghost); // a ghost is an end of the slider: a thin line
      const note = figure.histogram && panel.series.length === 1 ? `pooled ECE ${panel.series[0].note}` : "";
      const box = panelBox(panel, note);
      const root = svg("svg", { width, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${figure.title}: ${panel.title}. ${panel.series.length} series.` });
      const yt = nice(ey[0], ey[1], figure.wide ? 6 : 4);
      for (const t of yt.ticks) {
        root.append(svg("line", { class: "grid", x1: inner.left, x2: inner.right, y1: y(t), y2: y(t) }));
        root.append(svg("text", { class: "tick", x: inner.left - 7, y: y(t) + 3.5, "text-anchor": "end", text: t.toFixed(yt.digits) }));
      }
      if (ticks) {
        ticks.forEach((text, i) => {
          const at = { class: "tick", x: x(i), y: inner.bottom + 16, "text-anchor": slanted ? "end" : "middle", text };
          root.append(svg("text", slanted ? { ...at, transform: `rotate(-30 ${x(i)} ${inner.bottom + 12})` } : at));
        });
      } else {
        const xt = nice(ex[0], ex[1], Math.max(3, Math.round(width / 90)), figure.x.label === "epoch" ? 1 : 0);
        for (const t of xt.ticks) {
          if (!figure.histogram) root.append(svg("line", { class: "grid", x1: x(t), x2: x(t), y1: inner.top, y2: inner.bottom }));
          root.append(svg("text", { class: "tick", x: x(t), y: inner.bottom + 16, "text-anchor": "middle", text: t.toFixed(xt.digits) }));
        }
      }
      root.append(svg("line", { class: "axis", x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom }));
      if (figure.x.label) root.append(svg("text", { x: (inner.left + inner.right) / 2, y: height - 6, "text-anchor": "middle", text: figure.x.label }));
      if (figure.y.label) root.append(svg("text", { x: 12, y: (inner.top + inner.bottom - foot) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(inner.top + inner.bottom - foot) / 2})`, text: figure.y.label }));
      if (figure.diagonal) {
        const low = Math.max(ex[0], ey[0]), high = Math.min(ex[1], ey[1]);
        root.append(svg("line", { class: "ideal", x1: x(low), y1: y(low), x2: x(high), y2: y(high) }));
      }
      const places = [];
      const ends = [];
      panel.series.forEach((series, number) => {
        const style = methods.get(series.method) ?? {};
        const colour = series.colour ? ink(series.colour) : series.method ? colourOf(series.method) : ink("#0072b2");
        if (!series.colour) used.set(series.method ?? series.name, { colour, dash: DASH[style.dash], marker: style.marker, looks: series.method && looks(series.method), label: series.method ? labelOf(series.method) : series.name });
        const group = svg("g", { class: series.ghost ? "series ghost" : series.moving ? "series moving" : "series" });
        const step = figure.dodge ? Math.min(0.12, 0.6 / panel.series.length) : 0;
        const seen = series.points.filter((p) => p.y != null && p.x != null).map((p) => (step ? { ...p, tick: p.x, x: p.x + (number - (panel.series.length - 1) / 2) * step } : p));
        const path = (pts) => pts.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.y).toFixed(1)}`).join("");
        const band = seen.filter((p) => p.low != null && p.high != null);
        if (figure.histogram && !series.ghost) {
          for (const p of seen) {
            const w = (x(p.to) - x(p.from)) / bars.length;
            const h = p.share * (foot - 10);
            group.append(svg("rect", { x: x(p.from) + w * bars.indexOf(series) + 0.5, y: inner.bottom - h, width: Math.max(0.5, w - 1), height: h, fill: colour, opacity: 0.45 }));
          }
          if (band.length > 1 && (bars.length <= 2 || number === 0)) {
            const d = band.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.high).toFixed(1)}`).join("") + band.slice().reverse().map((p) => `L${x(p.x).toFixed(1)} ${y(p.low).toFixed(1)}`).join("") + "Z";
            group.append(svg("path", { d, fill: colour, opacity: 0.14 }));
          }
        } else if (figure.bands && band.length > 1) {
          const d = band.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.high).toFixed(1)}`).join("") + band.slice().reverse().map((p) => `L${x(p.x).toFixed(1)} ${y(p.low).toFixed(1)}`).join("") + "Z";
          group.append(svg("path", { class: "band", d, fill: colour, opacity: 0.16 }));
        } else if (!figure.histogram && crowd <= (figure.scatter ? MANY : FEW)) {
          for (const p of band) group.append(svg("line", { x1: x(p.x), x2: x(p.x), y1: y(p.low), y2: y(p.high), stroke: colour, "stroke-width": 1.4, opacity: crowd > FEW ? 0.2 : 0.4 }));
          for (const p of seen.filter((q) => q.x_low != null)) group.append(svg("line", { x1: x(p.x_low), x2: x(p.x_high), y1: y(p.y), y2: y(p.y), stroke: colour, "stroke-width": 1.4, opacity: crowd > FEW ? 0.2 : 0.4 }));
        }
        if (seen.length > 1 && !figure.dodge && !figure.scatter) group.append(svg("path", { d: path(seen), fill: "none", stroke: colour, "stroke-width": series.width ?? (series.moving ? 2.8 : series.ghost || crowd > MANY ? 1.3 : 1.9), "stroke-linejoin": "round", "stroke-dasharray": series.dashed ? "5 4" : DASH[style.dash], opacity: "size" in (seen[0] ?? {}) ? 0.55 : 1 }));
        const small = series.ghost || seen.length > 24 || (crowd > MANY && seen.length > 1 && !("size" in seen[0]));
        for (const p of seen) {
          const r = series.colour ? 0 : figure.cases ? 4 : figure.scatter ? 6 : p.size != null ? 3 + 7 * Math.sqrt(p.size / (figure.largest || 1)) : small ? 0 : figure.histogram ? 2.8 : 3.2;
          if (r) group.append(marker(style.marker, x(p.x), y(p.y), r, { ...(series.method ? looks(series.method) : { fill: colour, stroke: "var(--card)" }), ...(p.size != null && { "fill-opacity": 0.55 }), ...(p.open != null && { class: "opens" }) }));
          if (series.mark === p.x) group.append(svg("circle", { cx: x(p.x), cy: y(p.y), r: 6.2, fill: "none", stroke: colour, "stroke-width": 1.6 }));
          places.push({ px: x(p.x), py: y(p.y), p, series, group });
        }
        if (figure.scatter && !figure.cases && seen.length && (crowd <= FEW || style.base === series.method)) ends.push(beside(x(seen[0].x), y(seen[0].y), labelOf(series.method), inner));
        if (series.end && seen.length) ends.push({ x: inner.right + 6, y: y(seen.at(-1).y) + 3.5, text: series.end, width: 60 });
        root.append(group);
      });
      const written = []; // a name rises above those that are in its way; one for which there is no room is left to the legend
      for (const end of ends.sort((a, b) => b.y - a.y)) {
        const clash = () => written.find((other) => end.x < other.x + other.width && other.x < end.x + end.width && Math.abs(end.y - other.y) < 12);
        for (let other = clash(); other; other = clash()) end.y = other.y - 12;
        if (end.y < inner.top || (end.from && end.from - end.y > 60)) continue;
        written.push(end);
        root.append(svg("text", { class: "name", x: end.x, y: end.y, text: end.text }));
      }
      if (figure.histogram && panel.series.length > 1) {
        panel.series.filter((s) => !s.moving).forEach((s, i) => {
          const at = inner.top + 8 + 14 * i, style = methods.get(s.method) ?? {};
          root.append(svg("line", { x1: inner.left + 5, x2: inner.left + 25, y1: at, y2: at, stroke: colourOf(s.method), "stroke-width": 2, "stroke-dasharray": DASH[style.dash] }));
          root.append(svg("text", { x: inner.left + 30, y: at + 4, text: `${i ? "" : "pooled ECE "}${s.note} ${style.calibrator || "as trained"}` }));
        });
      }
      nearest(root, places, (hit) => {
        const p = hit.p, name = hit.series.name ?? labelOf(hit.series.method);
        const head = p.what ? `${name}: ${p.what}` : name;
        const at = ticks ? `${ticks[p.tick ?? p.x]}: ` : `${figure.x.label}: ${show(p.x)}\n`;
        const range = p.low != null ? ` (${show(p.low)} – ${show(p.high)})` : "";
        const more = p.count != null ? `\n${p.count.toLocaleString("en")} voxels, ${(p.share * 100).toFixed(1)} %` : p.cases != null ? `\n${p.cases} cases` : "";
        return `${head}\n${at}${figure.y.label || panel.title}: ${show(p.y)}${range}${more}`;
      });
      box.append(root);
      return box;
    });
    boxes.columns = columns;
    if ((figure.scatter && crowd <= FEW && !figure.cases) || figure.histogram) return boxes;
    if (used.size) boxes.push(legend(used));
    return boxes;
  };

  // The nearest point within reach says what it is, and its series stands out.
  const nearest = (root, places, text) => {
    let lit = null;
    const clear = () => { hush(); root.classList.remove("dimming"); lit?.classList.remove("lit"); lit = null; };
    root.addEventListener("pointermove", (event) => {
      const matrix = root.getScreenCTM();
      if (!matrix) return;
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
      let best = null, least = 26 ** 2;
      for (const place of places) {
        const d = (place.px - at.x) ** 2 + (place.py - at.y) ** 2;
        if (d < least) { least = d; best = place; }
      }
      if (!best) { clear(); return; }
      lit?.classList.remove("lit");
      lit = best.group;
      lit.classList.add("lit");
      root.classList.add("dimming");
      tell(event, text(best));
    });
    root.addEventListener("pointerleave", clear);
    root.addEventListener("click", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(root.getScreenCTM().inverse());
      const hit = places.filter((place) => place.p?.open != null).map((place) => [Math.hypot(place.px - at.x, place.py - at.y), place]).sort((a, b) => a[0] - b[0])[0];
      if (hit && hit[0] < 14) cases?.openCase(hit[1].p.open, hit[1].series.method);
    });
  };

  // Where there are many, colours stand for how a network was trained; the chips above tell and choose the rest.
  const legend = (used) => {
    const row = make("div", { class: "legend" });
    const few = used.size <= MANY ? [...used.values()] : [...used].filter(([name]) => (methods.get(name)?.base ?? name) === name).map(([, item]) => item);
    if (few.length < used.size) row.append(make("span", { text: "Dashed and hollow: with a calibrator. Point at a line to see which." }));
    for (const item of few) {
      const key = svg("svg", { width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true" });
      key.append(svg("line", { x1: 1, x2: 25, y1: 6, y2: 6, stroke: item.colour, "stroke-width": 2, "stroke-dasharray": item.dash }), marker(item.marker, 13, 6, 3.4, item.looks ?? { fill: item.colour }));
      row.append(make("span", {}, key, item.label));
    }
    return row;
  };

  const balance = (figure, panels, room) => {
    const { columns, width } = grid(room, panels.length, 440, 900);
    const most = Math.max(...panels.flatMap((p) => p.rows.flatMap((r) => [r.over, r.under, Math.abs(r.gap_low), Math.abs(r.gap_high)])).filter(Number.isFinite), 1e-6);
    const over = ink(data.colours.over), under = ink(data.colours.under);
    const boxes = panels.map((panel) => {
      const line = panel.rows.length > MANY ? 19 : 26, { names, left } = rowNames(panel.rows, width), height = panel.rows.length * line + 46;
      const x = scale([-most * 1.05, most * 1.05], [left, width - 16]);
      const root = svg("svg", { width, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${figure.title}: ${panel.title}` });
      const t = nice(-most, most, 6);
      for (const v of t.ticks) {
        root.append(svg("line", { class: v === 0 ? "axis" : "grid", x1: x(v), x2: x(v), y1: 18, y2: height - 24 }));
        root.append(svg("text", { class: "tick", x: x(v), y: height - 9, "text-anchor": "middle", text: Math.abs(v).toFixed(t.digits) }));
      }
      root.append(svg("text", { x: x(0) - 8, y: 11, "text-anchor": "end", text: `← ${figure.left}` }), svg("text", { x: x(0) + 8, y: 11, text: `${figure.right} →` }));
      panel.rows.forEach((row, i) => {
        const y = 20 + i * line;
        const group = svg("g", { class: "series" });
        group.append(svg("rect", { x: left, y, width: width - left - 16, height: line, fill: "transparent" }));
        group.append(svg("text", { class: "strong", x: left - 10, y: y + line / 2 + 4, "text-anchor": "end", text: names[i] }));
        group.append(svg("rect", { x: x(-row.under), y: y + 4, width: x(0) - x(-row.under), height: line - 8, fill: under, rx: 2 }));
        group.append(svg("rect", { x: x(0), y: y + 4, width: x(row.over) - x(0), height: line - 8, fill: over, rx: 2 }));
        group.append(svg("line", { x1: x(row.gap_low), x2: x(row.gap_high), y1: y + line / 2, y2: y + line / 2, stroke: "var(--ink)", "stroke-width": 1.5 }));
        group.append(marker("D", x(row.gap), y + line / 2, 4, { fill: "var(--card)", stroke: "var(--ink)", "stroke-width": 1.5 }));
        root.append(hover(group, `${labelOf(row.method)}\nover-confident ${show(row.over)}, under-confident ${show(row.under)}\ndifference ${show(row.gap)} (${show(row.gap_low)} – ${show(row.gap_high)})\n${row.cases} cases`));
      });
      const box = panelBox(panel);
      box.append(root);
      return box;
    });
    boxes.columns = columns;
    return boxes;
  };

  const heat = (figure, panels, room) => spread(panels, grid(room, panels.length, 460, 900), (panel, width) => {
    const { names, left } = rowNames(panel.rows, width), line = panel.rows.length > MANY ? 20 : 28, top = 40, cell = (width - left) / panel.columns.length;
    const height = top + panel.rows.length * line + 4;
    const root = svg("svg", { width, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${figure.title}: ${panel.title}. Best first: ${panel.rows.map((r) => labelOf(r.method)).join(", ")}` });
    const ends = panel.columns.map((_, c) => {
      const values = panel.rows.map((r) => r.values[c]).filter((v) => v != null);
      return [Math.min(...values), Math.max(...values)];
    });
    panel.columns.forEach((name, c) => {
      const words = name.split(" on ");
      root.append(svg("text", { class: name === "together" ? "strong" : "", x: left + (c + 0.5) * cell, y: words[1] ? top - 22 : top - 9, "text-anchor": "middle", text: words[0] }));
      if (words[1]) root.append(svg("text", { class: "tick", x: left + (c + 0.5) * cell, y: top - 9, "text-anchor": "middle", text: `on ${cell < 150 ? words[1].replace(" voxels", "").replace(" foreground", "") : words[1]}` }));
    });
    panel.rows.forEach((row, i) => {
      const y = top + i * line;
      root.append(svg("text", { class: "strong", x: left - 10, y: y + line / 2 + 4, "text-anchor": "end", text: names[i] }));
      row.values.forEach((value, c) => {
        const [low, high] = ends[c];
        const share = value == null ? 0 : high > low ? (value - low) / (high - low) : 0.5;
        const tone = share <= 0.5 ? `rgb(var(--heat-good) / ${(0.5 * (1 - 2 * share) + 0.04).toFixed(2)})` : `rgb(var(--heat-bad) / ${(0.5 * (2 * share - 1) + 0.04).toFixed(2)})`;
        const group = svg("g");
        group.append(svg("rect", { x: left + c * cell + 1, y: y + 1, width: cell - 2, height: line - 2, rx: 4, fill: tone, stroke: panel.columns[c] === "together" ? "var(--faint)" : null }));
        const text = svg("text", { x: left + (c + 0.5) * cell, y: y + line / 2 + 4, "text-anchor": "middle", text: value == null ? "–" : Number.isInteger(value) ? String(value) : value.toFixed(2) });
        text.style.fill = "var(--ink)";
        group.append(text);
        root.append(hover(group, `${labelOf(row.method)}\n${panel.columns[c]}: ${show(value)}`));
      });
    });
    const box = panelBox(panel);
    box.append(root);
    return box;
  });

  const differences = (figure, panels, room) => spread(panels, grid(room, panels.length, Math.max(...panels.map((panel) => panel.methods.length)) > FEW ? 640 : 430, 760), (panel, width) => {
    const n = panel.methods.length, half = Math.ceil(n / 2), line = 19;
    const names = shortened(panel.methods.map(labelOf), Math.max(12, Math.floor((width * 0.36 - 62) / 6.6)));
    const margin = 62 + 6.6 * Math.max(...names.map((name) => name.length)), low = Math.min(1, ...panel.ranks), high = Math.max(n, 2, ...panel.ranks);
    const x = scale([low, high], [margin, width - margin]);
    const levels = panel.groups.length, top = 46, height = top + 14 + levels * 7 + half * line + 12;
    const root = svg("svg", { width, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${figure.title}: ${panel.title}. From best to worst: ${panel.methods.map((m, i) => `${labelOf(m)} ${panel.ranks[i].toFixed(2)}`).join(", ")}. Critical difference ${panel.difference.toFixed(2)}.` });
    root.append(svg("line", { class: "axis", x1: x(low), x2: x(high), y1: top, y2: top }));
    for (let r = low; r <= high; r += Math.max(1, Math.ceil((18 * (high - low)) / (x(high) - x(low))))) {
      root.append(svg("line", { class: "axis", x1: x(r), x2: x(r), y1: top - 4, y2: top + 4 }), svg("text", { class: "tick", x: x(r), y: top - 9, "text-anchor": "middle", text: String(r) }));
    }
    const span = Math.min(x(low + panel.difference), width - 4);
    root.append(svg("line", { x1: x(low), x2: span, y1: 12, y2: 12, stroke: "var(--ink)", "stroke-width": 2 }), svg("text", { x: span + 7, y: 16, text: `CD ${panel.difference.toFixed(2)}` }));
    panel.groups.forEach(([a, b], i) => {
      const y = top + 9 + i * 7;
      root.append(svg("line", { x1: x(panel.ranks[a]) - 3, x2: x(panel.ranks[b]) + 3, y1: y, y2: y, stroke: "var(--ink)", "stroke-width": 3.4, "stroke-linecap": "round", opacity: 0.75 }));
    });
    panel.methods.forEach((method, i) => {
      const first = i < half, row = first ? i : n - 1 - i;
      const y = top + 20 + levels * 7 + row * line, at = x(panel.ranks[i]), end = first ? margin - 14 : width - margin + 14;
      const group = svg("g", { class: "series", opacity: visible(method, panel.place) ? 1 : 0.25 });
      group.append(svg("path", { d: `M${at.toFixed(1)} ${top}V${y}H${end}`, fill: "none", stroke: colourOf(method), "stroke-width": 1.4 }));
      group.append(svg("circle", { cx: at, cy: top, r: 3.6, fill: colourOf(method) }));
      group.append(svg("text", { class: "strong", x: first ? end - 6 : end + 6, y: y + 4, "text-anchor": first ? "end" : "start", text: `${names[i]}  ${panel.ranks[i].toFixed(2)}` }));
      root.append(hover(group, `${labelOf(method)}\nmean rank ${panel.ranks[i].toFixed(2)} over ${panel.patients} patients`));
    });
    const box = panelBox(panel, `Friedman p ${panel.p < 0.001 ? "< 0.001" : `= ${panel.p.toFixed(3)}`}`);
    box.append(root);
    return box;
  });

  const radar = (figure, panels, room) => {
    const { columns, width } = grid(room, panels.length, 340, 520);
    const used = new Map();
    const boxes = panels.map((panel) => {
      const size = Math.min(width, 460), middle = width / 2, n = panel.axes.length, centre = size / 2 - 12;
      const words = panel.axes.map((name, i) => [name.replace(" on all voxels", "").replace(" foreground", "").replace(" on ", ", "), `${show(panel.worst[i])} to ${show(panel.best[i])}`]);
      const reach = Math.min(size / 2 - 66, (middle - 6 * Math.max(...words.flat().map((word) => word.length)) - 4) / 1.13);
      const at = (i, share) => {
        const angle = (i / n) * 2 * Math.PI - Math.PI / 2;
        const part = 0.15 + 0.85 * share; // the worst is a small ring, not one point
        return [middle + Math.cos(angle) * reach * part, centre + Math.sin(angle) * reach * part];
      };
      const root = svg("svg", { width, viewBox: `0 0 ${width} ${size - 30}`, role: "img", "aria-label": `${figure.title}: ${panel.title}` });
      const shape = (values) => values.map((v, i) => at(i, v ?? 0).map((c) => c.toFixed(1)).join(",")).join(" ");
      for (const ring of [0.25, 0.5, 0.75, 1]) root.append(svg("polygon", { points: shape(panel.axes.map(() => ring)), fill: "none", class: ring === 1 ? "axis" : "grid" }));
      panel.axes.forEach((_, i) => {
        const [ex, ey] = at(i, 1), [tx, over] = at(i, 1.13), ty = over - (over < centre - reach / 2 ? 12 : 0);
        root.append(svg("line", { class: "grid", x1: middle, y1: centre, x2: ex, y2: ey }));
        root.append(svg("text", { x: tx, y: ty + 4, "text-anchor": Math.abs(tx - middle) < 8 ? "middle" : tx > middle ? "start" : "end", text: words[i][0] }));
        root.append(svg("text", { class: "tick", x: tx, y: ty + 16, "text-anchor": Math.abs(tx - middle) < 8 ? "middle" : tx > middle ? "start" : "end", text: words[i][1] }));
      });
      const places = [];
      for (const series of panel.series) {
        const colour = colourOf(series.method), style = methods.get(series.method) ?? {};
        used.set(series.method, { colour, dash: DASH[style.dash], marker: style.marker, looks: looks(series.method), label: labelOf(series.method) });
        const group = svg("g", { class: "series" });
        group.append(svg("polygon", { points: shape(series.values), fill: colour, "fill-opacity": 0.05, stroke: colour, "stroke-width": 1.8, "stroke-dasharray": DASH[style.dash] }));
        series.values.forEach((v, i) => {
          if (v == null) return;
          const [px, py] = at(i, v);
          group.append(marker(style.marker, px, py, 3, looks(series.method)));
          places.push({ px, py, series, i, group });
        });
        root.append(group);
      }
      nearest(root, places, (hit) => `${labelOf(hit.series.method)}\n${panel.axes[hit.i]}: ${show(hit.series.means[hit.i])}`);
      const box = panelBox(panel);
      box.append(root);
      return box;
    });
    boxes.columns = columns;
    boxes.push(legend(used));
    return boxes;
  };

  const KINDS = { lines, balance, heat, differences, radar };

  // ---- before and after calibration --------------------------------------------------------------------------------
  const compared = { calibrator: "", at: 0 }; // which calibrator the slider leads to, and how far it has come
  const calibratorOf = (series) => methods.get(series.method)?.calibrator ?? "";
  const calibratorsOf = (figure) => [...new Set(figure.panels.flatMap((p) => (p.series ?? []).map(calibratorOf)))].filter(Boolean);
  // Bin by bin from the curve as trained to the calibrated one; a bin that only one of them has stays with it.
  const between = (before, after, at) => {
    const bins = new Map(after.points.map((p) => [p.from, p]));
    const mix = (a, b) => (a == null || b == null ? null : a + (b - a) * at);
    const common = before.points.filter((p) => bins.has(p.from)).map((p) => {
      const q = bins.get(p.from);
      return { from: p.from, to: p.to, x: mix(p.x, q.x), y: mix(p.y, q.y), low: mix(p.low, q.low), high: mix(p.high, q.high), share: mix(p.share, q.share) };
    });
    if (at === 0 || at === 1) return (at ? after : before).points;
    return common;
  };
  const morphed = (figure, panels) => (!figure.histogram || !compared.calibrator ? panels : panels.map((panel) => {
    const before = panel.series.find((s) => !calibratorOf(s)), after = panel.series.find((s) => calibratorOf(s) === compared.calibrator);
    if (!before || !after) return { ...panel, series: panel.series.filter((s) => s === before || s === after) };
    const { at } = compared;
    const moving = { method: (at < 0.5 ? before : after).method, moving: true, note: "", name: at === 0 || at === 1 ? undefined : "between (drawn, not measured)", points: between(before, after, at) };
    return { ...panel, series: [{ ...before, ghost: true }, { ...after, ghost: true }, moving] };
  }));
  const compareControl = (figure, node) => {
    const names = calibratorsOf(figure);
    if (!names.length) return;
    const pick = make("select", { "aria-label": "Calibrator to compare" }, make("option", { value: "", text: "all calibrators at once" }), ...names.map((name) => make("option", { value: name, text: name })));
    const slider = make("input", { type: "range", min: 0, max: 100, value: 0, step: 1, "aria-label": "From as trained to calibrated" });
    const said = make("output");
    const update = () => {
      compared.at = Number(slider.value) / 100;
      const words = compared.at === 0 ? "as trained" : compared.at === 1 ? `after ${compared.calibrator}` : "between: drawn, not measured";
      said.textContent = compared.calibrator ? words : "";
      slider.setAttribute("aria-valuetext", words);
      draw(figure);
    };
    pick.addEventListener("change", () => { compared.calibrator = pick.value; update(); });
    slider.addEventListener("input", () => { if (!compared.calibrator) compared.calibrator = pick.value = names[0]; update(); });
    node.querySelector(".drawing").before(make("div", { class: "compare" }, make("label", {}, "Compare ", pick), make("label", { class: "slider" }, "before", slider, "after calibration", said)));
  };

  // Ranks among the methods that are shown: 1 is best, equals share the smallest.
  const among = (place, shown) => {
    const told = data.ranking[place];
    if (!told) return null;
    const at = told.methods.map((m, i) => (shown.has(m) ? i : -1)).filter((i) => i >= 0);
    const rank = (values, up) => at.map((i) => 1 + at.filter((j) => (up ? values[j] > values[i] : values[j] < values[i])).length);
    const mean = (lists) => at.map((_, k) => lists.reduce((sum, list) => sum + list[k], 0) / lists.length);
    const byMetric = told.values.map((cases, m) => cases.filter((values) => at.every((i) => values[i] != null)).map((values) => rank(values, told.up[m])));
    const sums = told.values.map((cases, m) => rank(told.means[m], told.up[m]));
    const all = told.values[0].map((_, c) => told.values.map((cases, m) => (at.every((i) => cases[c][i] != null) ? rank(cases[c], told.up[m]) : null)).filter(Boolean)).filter((lists) => lists.length).map(mean);
    const column = (lists) => (lists.length ? mean(lists) : at.map(() => null));
    const table = (columns, last) => new Map(at.map((i, k) => [told.methods[i], [...columns.map((c) => c[k]), last[k]]]));
    return { "mean-case-rank": table(byMetric.map(column), column(all)), "sum-rank": table(sums, at.map((_, k) => sums.reduce((sum, s) => sum + s[k], 0))) };
  };
  const reranked = (figure, panel, rows) => {
    const found = rows.length < panel.rows.length && figure.kind === "heat" ? among(panel.place, new Set(rows.map((r) => r.method)))?.[figure.id] : null;
    return found ? rows.map((r) => ({ ...r, values: found.get(r.method) })).sort((a, b) => a.values.at(-1) - b.values.at(-1)) : rows;
  };
  // What the filters leave of a figure, and of many methods the best, which stand first.
  const filtered = (figure) => remaining(figure).map((panel) => {
    const count = (panel.rows ?? panel.methods ?? (figure.best ? panel.series : [])).length;
    if (whole.has(figure.id) || count <= TOP) return panel;
    if (figure.best) return { ...panel, series: panel.series.slice(0, TOP), hiding: count - TOP };
    const groups = panel.groups?.map(([a, b]) => [a, Math.min(b, TOP - 1)]).filter(([a, b]) => a < b);
    return { ...panel, ...(panel.rows && { rows: panel.rows.slice(0, TOP) }), ...(panel.methods && { methods: panel.methods.slice(0, TOP), ranks: panel.ranks.slice(0, TOP), groups }), hiding: count - TOP };
  });
  const remaining = (figure) => figure.panels
    .filter((panel) => !off.places.has(panel.place))
    .map((panel) => ({
      ...panel,
      ...(panel.series && { series: panel.series.filter((s) => !s.method || visible(s.method, panel.place)) }),
      ...(panel.rows && { rows: reranked(figure, panel, panel.rows.filter((r) => visible(r.method, panel.place))) }),
    }))
    .filter((panel) => (panel.series ? panel.series.length : panel.rows ? panel.rows.length : panel.methods.some((m) => visible(m, panel.place))));

  const draw = (figure) => {
    const folded = document.querySelector(`[data-figure="${CSS.escape(figure.id)}"]`)?.closest("details.fold:not([open])");
    if (folded) return; // it has no width yet; it is drawn when it is opened
    const node = document.querySelector(`[data-figure="${CSS.escape(figure.id)}"]`);
    const panels = morphed(figure, filtered(figure));
    node.hidden = panels.length === 0;
    const drawing = node.querySelector(".drawing");
    const boxes = panels.length ? KINDS[figure.kind](figure, panels, drawing.clientWidth || 900) : [];
    drawing.style.gridTemplateColumns = `repeat(${boxes.columns || 1}, minmax(0, 1fr))`;
    drawing.replaceChildren(...boxes);
    const hiding = Math.max(0, ...panels.map((panel) => panel.hiding ?? 0));
    if (hiding || whole.has(figure.id)) drawing.append(make("button", { type: "button", class: "chip switch", text: whole.has(figure.id) ? `Show the best ${TOP}` : `Show all: ${hiding} more`, onclick: () => { whole.has(figure.id) ? whole.delete(figure.id) : whole.add(figure.id); draw(figure); } }));
    const details = node.querySelector("details");
    if (details.open) numbers(figure, details);
  };
  const drawn = new Set();
  const drawAll = () => {
    for (const figure of data.figures) if (drawn.has(figure.id)) draw(figure);
    for (const swatch of document.querySelectorAll(".swatch[data-method]")) {
      const key = svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" });
      key.append(marker(methods.get(swatch.dataset.method)?.marker, 6, 6, 4.4, looks(swatch.dataset.method)));
      swatch.replaceChildren(key);
    }
  };

  // The same numbers as a table, for those who read rather than look, and for files.
  const numbersOf = (figure) => {
    const rows = [];
    for (const panel of filtered(figure)) {
      for (const series of panel.series ?? []) {
        if (series.values) series.values.forEach((v, i) => rows.push({ panel: panel.title, method: labelOf(series.method), what: panel.axes[i], share: v, mean: series.means[i] }));
        else for (const p of series.points) rows.push({ panel: panel.title, method: series.name ?? labelOf(series.method), ...p, ...(panel.ticks && { x: panel.ticks[p.x] }) });
      }
      for (const row of panel.rows ?? []) {
        if (row.values) rows.push({ panel: panel.title, method: labelOf(row.method), ...Object.fromEntries(panel.columns.map((c, i) => [c, row.values[i]])) });
        else rows.push({ panel: panel.title, ...row, method: labelOf(row.method) });
      }
      (panel.methods ?? []).forEach((m, i) => rows.push({ panel: panel.title, method: labelOf(m), "mean rank": panel.ranks[i] }));
    }
    const columns = [...new Set(rows.flatMap(Object.keys))].filter((c) => c !== "open");
    return [columns, ...rows.map((row) => columns.map((c) => row[c] ?? ""))];
  };
  const numbers = (figure, details) => {
    const [columns, ...rows] = numbersOf(figure);
    const head = make("tr", {}, ...columns.map((c) => make("th", { scope: "col", text: c })));
    const body = rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", { text: typeof cell === "number" ? show(cell) : cell }))));
    details.querySelector(".numbers-table").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  };

  // Best and second among the rows that are shown, by the digits printed, and their rank.
  const place = (table) => {
    const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
    for (const where of data.places) {
      const here = rows.filter((row) => row.dataset.place === where);
      [...table.tHead.rows[0].cells].forEach((head, column) => {
        const cells = here.map((row) => row.cells[column]).filter((cell) => cell?.querySelector(".mean"));
        const fewest = Math.min(...cells.map((cell) => Number(cell.dataset.lacking)));
        const up = head.querySelector("button")?.dataset.sort === "down";
        const fair = cells.filter((cell) => Number(cell.dataset.lacking) <= fewest).map((cell) => [Number(cell.querySelector(".mean").textContent), cell]).filter(([v]) => !Number.isNaN(v));
        const order = fair.map(([v]) => v).sort((a, b) => (up ? b - a : a - b));
        const ranked = table.dataset.unranked === undefined && here.length > 1;
        for (const cell of cells) cell.classList.remove("best", "second");
        if (ranked) for (const [v, cell] of fair) { const at = order.indexOf(v); if (at < 2) cell.classList.add(at ? "second" : "best"); }
      });
      const ranks = among(where, new Set(here.map((row) => row.dataset.method)))?.["mean-case-rank"];
      if (ranks) for (const row of here) {
        const cell = row.querySelector(".rank"), value = ranks.get(row.dataset.method)?.at(-1);
        if (cell && value != null) { cell.dataset.value = value; cell.textContent = value.toFixed(2); }
      }
    }
  };

  // ---- files and the clipboard -------------------------------------------------------------------------------------
  const save = (name, type, text) => {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const copy = async (button, text) => {
    try { await navigator.clipboard.writeText(text); } catch {
      const area = make("textarea", { text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1200);
  };
  const csv = (rows) => rows.map((row) => row.map((cell) => (/[",\n]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : cell)).join(",")).join("\n") + "\n";
  const SPECIAL = { "\\": "\\textbackslash{}", "&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", _: "\\_", "{": "\\{", "}": "\\}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "↑": "$\\uparrow$", "↓": "$\\downarrow$", "λ": "$\\lambda$", "ρ": "$\\rho$", "σ": "$\\sigma$", "–": "--" };
  const latex = ([head, ...rows]) => {
    const text = (cell) => (typeof cell === "number" ? show(cell) : String(cell)).replace(/[\\&%$#_{}~^↑↓λρσ–]/g, (c) => SPECIAL[c]);
    const line = (row) => `${row.map(text).join(" & ")} \\\\`;
    return ["% needs \\usepackage{booktabs}", `\\begin{tabular}{l${"r".repeat(head.length - 1)}}`, "\\toprule", line(head), "\\midrule", ...rows.map(line), "\\bottomrule", "\\end{tabular}"].join("\n") + "\n";
  };
  const tableRows = (table) => [...table.rows].filter((row) => !row.hidden).map((row) => [...row.cells].map((cell) => {
    const words = [...(cell.querySelector("button") ?? cell).childNodes].map((node) => node.textContent.trim()).filter(Boolean);
    return cell.querySelector(".mean") ? cell.querySelector(".mean").textContent : words.join(" ");
  }));
  // One file of all panels, in the colours and letters that the page shows.
  const svgText = (node) => {
    const drawing = node.querySelector(".drawing"), origin = drawing.getBoundingClientRect();
    const root = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: origin.width, height: origin.height, viewBox: `0 0 ${origin.width} ${origin.height}` });
    root.append(svg("rect", { width: "100%", height: "100%", fill: getComputedStyle(node).backgroundColor }));
    for (const panel of drawing.querySelectorAll("svg")) {
      const twin = panel.cloneNode(true), box = panel.getBoundingClientRect();
      const [all, twins] = [[...panel.querySelectorAll("*")], [...twin.querySelectorAll("*")]];
      all.forEach((one, i) => {
        const style = getComputedStyle(one);
        for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "font-size", "font-weight", "font-family", "paint-order"]) twins[i].setAttribute(name, style.getPropertyValue(name));
        twins[i].removeAttribute("class");
      });
      for (const [name, value] of Object.entries({ x: box.left - origin.left, y: box.top - origin.top, width: box.width, height: box.height })) twin.setAttribute(name, value.toFixed(1));
      root.append(twin);
    }
    for (const title of drawing.querySelectorAll("h4, .legend span")) {
      const box = title.getBoundingClientRect(), key = title.querySelector("svg");
      root.append(svg("text", { x: box.left - origin.left + (key ? 32 : 0), y: box.top - origin.top + 13, "font-family": "sans-serif", "font-size": 12, fill: getComputedStyle(title).color, text: title.textContent }));
    }
    return new XMLSerializer().serializeToString(root);
  };
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => {
      const node = button.closest("[data-figure]"), table = button.parentElement.dataset.table, name = node?.dataset.figure ?? table;
      const rows = node ? numbersOf(byId.get(name)) : tableRows($(table));
      if (button.dataset.save === "svg") save(`${name}.svg`, "image/svg+xml", svgText(node));
      else if (button.dataset.save === "csv") save(`${name}.csv`, "text/csv", csv(rows));
      else copy(button, latex(rows));
    });
  }
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button, $(button.dataset.copy).textContent));

  // ---- filters -----------------------------------------------------------------------------------------------------
  const apply = () => {
    for (const row of document.querySelectorAll("tbody tr[data-method]")) row.hidden = !visible(row.dataset.method, row.dataset.place);
    for (const table of document.querySelectorAll("#table-headline, #table-rules, #table-raters, #table-failure")) place(table);
    drawAll();
    cases?.refresh();
  };
  const chips = (id, name, set, values, text, colour) => {
    const bar = $(id);
    if (values.length < 2) { bar.remove(); return false; }
    bar.append(make("span", { text: name }));
    const buttons = values.map((value) => make("button", {
      type: "button", class: "chip", "aria-pressed": "true", "data-value": value, title: "click: show or hide · double click: only this",
      onclick: () => { set.has(value) ? set.delete(value) : set.add(value); press(); },
      ondblclick: () => { set.clear(); for (const other of values) if (other !== value) set.add(other); press(); },
    }, ...(colour ? [make("span", { class: "swatch", "data-method": value })] : []), text(value)));
    const reset = make("button", { type: "button", class: "chip reset", text: "all", onclick: () => { set.clear(); press(); } });
    const press = () => { for (const b of buttons) b.setAttribute("aria-pressed", String(!set.has(b.dataset.value))); apply(); };
    bar.append(...buttons, reset);
    return true;
  };

  // ---- sorting -----------------------------------------------------------------------------------------------------
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.querySelectorAll("thead th")];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      button?.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const up = before === "none" ? button.dataset.sort === "up" : before === "descending";
        heads.forEach((h) => h.hasAttribute("aria-sort") && h.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        const numeric = head.classList.contains("num");
        const key = (row) => {
          const cell = row.cells[column];
          if (!numeric) return cell.textContent.trim();
          const value = cell.dataset.value;
          return value === "" || value === "nan" || value === undefined ? null : Number(value);
        };
        const sign = up ? 1 : -1;
        body.append(...[...body.rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === null || y === null) return x === y ? 0 : x === null ? 1 : -1;
          return sign * (numeric ? x - y : x.localeCompare(y, "en"));
        }));
      });
    });
  }

  // ---- the worst cases ---------------------------------------------------------------------------------------------
  const viewer = () => {
    if (!data.cases.length) return null;
    const pick = $("case-pick"), methodPick = $("method-pick"), slider = $("slice"), shown = $("slice-shown"), divider = $("calibration"), divided = $("calibration-shown");
    const pixels = new Map();
    const load = (uri) => {
      if (!uri) return Promise.resolve(null);
      if (!pixels.has(uri)) {
        pixels.set(uri, new Promise((done, failed) => {
          const image = new Image();
          image.onload = () => {
            const canvas = make("canvas", { width: image.width, height: image.height });
            const context = canvas.getContext("2d", { willReadFrequently: true });
            context.drawImage(image, 0, 0);
            const rgba = context.getImageData(0, 0, image.width, image.height).data;
            const grey = new Uint8Array(rgba.length / 4);
            for (let i = 0; i < grey.length; i++) grey[i] = rgba[4 * i];
            done(grey);
          };
          image.onerror = failed;
          image.src = uri;
        }));
      }
      return pixels.get(uri);
    };
    const rgb = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    const classColour = (index) => rgb(data.classes[index % data.classes.length]);
    const RAMP = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]]; // cividis
    const ramp = (share) => {
      const at = Math.max(0, Math.min(1, share)) * (RAMP.length - 1), i = Math.min(RAMP.length - 2, Math.floor(at));
      return RAMP[i].map((v, c) => v + (RAMP[i + 1][c] - v) * (at - i));
    };
    const [wrongSure, wrongUnsure] = [[255, 60, 30], [255, 190, 60]];
    const views = {};
    const titles = [["image", "Image"], ["truth", "Truth"], ["prediction", "Prediction"], ["confidence", "Confidence"], ["error", "Errors"], ["possible", "True probability"]];
    const reserve = (one) => { for (const view of Object.values(views)) { view.canvas.style.aspectRatio = `${one.columns} / ${one.rows * one.aspect}`; } };
    for (const [key, title] of titles) {
      const canvas = make("canvas", { role: "img", "aria-label": title });
      const caption = make("figcaption");
      views[key] = { canvas, caption, figure: make("figure", { class: "view" }, canvas, caption), title };
    }
    $("views").append(...titles.map(([key]) => views[key].figure));

    const paint = (view, one, at, colour, line = 0) => {
      const { rows, columns } = one, zoom = Math.max(1, Math.round(360 / Math.max(rows * one.aspect, columns)));
      const small = make("canvas", { width: columns, height: rows });
      const context = small.getContext("2d");
      const picture = context.createImageData(columns, rows);
      for (let i = 0, j = at * rows * columns; i < rows * columns; i++, j++) {
        const [r, g, b] = colour(j, i % columns, Math.floor(i / columns));
        picture.data.set([r, g, b, 255], 4 * i);
      }
      context.putImageData(picture, 0, 0);
      view.canvas.width = columns * zoom;
      view.canvas.height = Math.round(rows * one.aspect * zoom);
      const big = view.canvas.getContext("2d");
      big.imageSmoothingEnabled = view === views.image || view === views.confidence;
      big.drawImage(small, 0, 0, view.canvas.width, view.canvas.height);
      if (line > 0 && line < columns) { big.fillStyle = "#fff"; big.fillRect(line * zoom - 1, 0, 2, view.canvas.height); }
    };
    let turn = 0;
    const render = async () => {
      const mine = ++turn;
      const one = data.cases[Number(pick.value)];
      const told = one.methods.find((m) => m.method === methodPick.value) ?? one.methods[0];
      const uris = [one.image, one.truth, told.prediction, told.confidence, told.possible, told.after?.prediction, told.after?.confidence];
      const [image, truth, before, sureBefore, possible, changed, sureAfter] = await Promise.all(uris.map(load));
      if (mine !== turn) return;
      // Left of the line the maps are calibrated, right of it as trained.
      $("calibration-label").hidden = !told.after;
      const after = changed ?? before, line = told.after ? Math.round((one.columns * Number(divider.value)) / 100) : 0;
      const column = (j) => j % one.columns;
      const mixed = (left, right) => (line === 0 ? right : right.map((value, j) => (column(j) < line ? left[j] : value)));
      const prediction = mixed(after, before), confidence = mixed(sureAfter, sureBefore);
      const how = line === 0 ? "as trained" : line === one.columns ? `after ${told.after.calibrator}` : `left of the line after ${told.after.calibrator}, right of it as trained`;
      divided.textContent = how;
      divider.setAttribute("aria-valuetext", how);
      const at = Number(slider.value), size = one.rows * one.columns;
      shown.textContent = `${one.slices[at] + 1} (${at + 1} of ${one.slices.length})`;
      slider.setAttribute("aria-valuetext", `slice ${one.slices[at] + 1}`);
      const grey = (j) => (image ? image[j] : 40);
      const begin = at * size;
      const edge = (map, j, x, y) => map[j] > 0 && (x === 0 || y === 0 || x === one.columns - 1 || y === one.rows - 1 || map[j - 1] !== map[j] || map[j + 1] !== map[j] || map[j - one.columns] !== map[j] || map[j + one.columns] !== map[j]);
      const over = (map) => (j, x, y) => {
        const v = grey(j);
        if (!map[j] || map[j] === 255) return [v, v, v];
        const share = edge(map, j, x, y) ? 0.85 : 0.38;
        return classColour(map[j]).map((c) => c * share + v * (1 - share));
      };
      const least = 1 / one.classes.length;
      paint(views.image, one, at, (j) => [grey(j), grey(j), grey(j)]);
      paint(views.truth, one, at, over(truth));
      paint(views.prediction, one, at, over(prediction), line);
      paint(views.confidence, one, at, (j) => ramp((confidence[j] / 255 - least) / (1 - least)), line);
      views.possible.figure.hidden = !possible;
      if (possible) paint(views.possible, one, at, (j) => ramp((possible[j] / 255 - least) / (1 - least)));
      views.possible.caption.replaceChildren("True probability of the predicted class: the confidence it deserves", make("i", { class: "ramp" }));
      const counted = (label, sure) => {
        const found = { wrong: 0, sure: 0 };
        for (let j = begin; j < begin + size; j++) if (truth[j] !== 255 && truth[j] !== label[j]) { found.wrong++; if (sure[j] > 229) found.sure++; }
        return found;
      };
      const errors = counted(before, sureBefore), later = told.after && counted(after, sureAfter);
      paint(views.error, one, at, (j) => {
        const v = grey(j) * 0.55;
        if (truth[j] === 255 || truth[j] === prediction[j]) return [v, v, v];
        const share = Math.max(0, Math.min(1, (confidence[j] / 255 - 0.5) / 0.5));
        return wrongUnsure.map((c, i) => c + (wrongSure[i] - c) * share);
      }, line);
      const keys = one.classes.slice(1).flatMap((name, i) => [make("i", { class: "key", "data-colour": data.classes[(i + 1) % data.classes.length] }), name]);
      views.image.caption.textContent = image ? "Image" : "Image: not at hand";
      views.truth.caption.replaceChildren("Truth", ...keys);
      views.prediction.caption.replaceChildren(`Prediction of ${labelOf(told.method)}`);
      views.confidence.caption.replaceChildren("Confidence", make("i", { class: "ramp" }), `${Math.round(least * 100)} to 100 %`);
      const then = (key, mark) => (later ? `${mark}, ${later[key]} after ${told.after.calibrator}` : "");
      views.error.caption.textContent = `Errors: ${errors.wrong} voxels here${changed ? then("wrong", " as trained") : ""}; with over 90 % confidence (red): ${errors.sure}${then("sure", " as trained")}`;
      for (const key of document.querySelectorAll(".key")) key.style.background = key.dataset.colour;
      for (const bar of document.querySelectorAll(".ramp")) bar.style.background = `linear-gradient(90deg, ${RAMP.map((c) => `rgb(${c.join(" ")})`).join(", ")})`;
      const words = { dsc: "DSC", "nll@all": "NLL", "ece@predicted": "ECE on predicted foreground" };
      const facts = (scores) => Object.entries(scores).map(([key, value]) => `${words[key] ?? key} ${show(value)}`).join(" · ") || "no scores";
      $("case-scores").textContent = `${one.case}, ${labelOf(told.method)}: ${facts(told.scores)}${told.after ? `; after ${told.after.calibrator}: ${facts(told.after.scores)}` : ""}`;
    };
    const choose = () => {
      const one = data.cases[Number(pick.value)], before = methodPick.value;
      const offered = one.methods.filter((m) => visible(m.method));
      methodPick.replaceChildren(...(offered.length ? offered : one.methods).map((m) => make("option", { value: m.method, text: labelOf(m.method) })));
      if ([...methodPick.options].some((o) => o.value === before)) methodPick.value = before;
    };
    const open = () => {
      const one = data.cases[Number(pick.value)];
      choose();
      reserve(one);
      slider.max = String(one.slices.length - 1);
      slider.value = String(one.start);
      render();
    };
    pick.addEventListener("change", open);
    methodPick.addEventListener("change", render);
    slider.addEventListener("input", render);
    divider.addEventListener("input", render);
    $("views").addEventListener("wheel", (event) => {
      event.preventDefault();
      slider.value = String(Number(slider.value) + Math.sign(event.deltaY));
      render();
    }, { passive: false });
    open();
    const openCase = (name, method) => {
      const index = data.cases.findIndex((one) => one.case === name);
      if (index < 0) return;
      pick.value = String(index);
      open();
      if ([...methodPick.options].some((o) => o.value === method)) { methodPick.value = method; render(); }
      $("viewer").scrollIntoView({ block: "nearest" });
    };
    return { refresh: () => { choose(); render(); }, openCase };
  };

  // ---- contents, theme, and the first drawing ----------------------------------------------------------------------
  const sections = [...document.querySelectorAll("main section[id]")];
  for (const part of sections) {
    const link = make("a", { href: `#${part.id}`, text: part.querySelector("h2")?.textContent ?? part.getAttribute("aria-label") });
    $("contents").append(make("li", {}, link));
  }
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const link = document.querySelector(`.contents a[href="#${entry.target.id}"]`);
      if (entry.isIntersecting) {
        document.querySelectorAll(".contents a[aria-current]").forEach((a) => a.removeAttribute("aria-current"));
        link.setAttribute("aria-current", "true");
      }
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  sections.forEach((part) => watch.observe(part));

  const cases = viewer();
  const bases = [...new Set(data.methods.map((m) => m.base))];
  const calibrators = [...new Set(data.methods.map((m) => m.calibrator))];
  const bars = [
    chips("filter-places", "Dataset", off.places, data.places, (v) => v, false),
    chips("filter-bases", "Training", off.bases, bases, labelOf, true),
    chips("filter-calibrators", "Calibrator", off.calibrators, calibrators, (v) => v || "none", false),
  ];
  document.querySelector(".filters").hidden = !bars.some(Boolean);

  // Figures are drawn at once, so that a link lands where it says; those of folded sections when they are opened.
  const byId = new Map(data.figures.map((f) => [f.id, f]));
  const drawOnce = (id) => { drawn.add(id); draw(byId.get(id)); };
  for (const node of document.querySelectorAll("[data-figure]")) {
    drawn.add(node.dataset.figure);
    if (byId.get(node.dataset.figure).histogram) compareControl(byId.get(node.dataset.figure), node);
    node.querySelector("details").addEventListener("toggle", (event) => { if (event.target.open) numbers(byId.get(node.dataset.figure), event.target); });
  }
  for (const fold of document.querySelectorAll("details.fold")) {
    fold.addEventListener("toggle", () => { if (fold.open) for (const node of fold.querySelectorAll("[data-figure]")) drawOnce(node.dataset.figure); });
  }
  const land = () => {
    document.documentElement.style.scrollPaddingTop = `${getComputedStyle(document.querySelector(".filters")).position === "sticky" ? document.querySelector(".filters").offsetHeight + 12 : 12}px`;
    const target = location.hash && $(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const fold = target.closest("details.fold") ?? target.querySelector("details.fold");
    if (fold && !fold.open) { fold.open = true; for (const node of fold.querySelectorAll("[data-figure]")) drawOnce(node.dataset.figure); }
    target.scrollIntoView({ behavior: "instant" });
  };
  window.addEventListener("hashchange", land);
  $("contents").addEventListener("click", (event) => { if (event.target.hash && event.target.hash === location.hash) land(); });
  const everything = () => { for (const fold of document.querySelectorAll("details.fold")) fold.open = true; drawAll(); };
  window.addEventListener("beforeprint", everything);
  window.addEventListener("afterprint", drawAll);
  $("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    drawAll();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => { drawAll(); land(); }, 120);
  });
  drawAll();
  land();
})();
