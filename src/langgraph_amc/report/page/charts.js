/* The other sections: curves, stacks, bars, intervals, tables, changes. */

const ROOM = { left: 58, right: 16, top: 12, bottom: 38 };

function curves(section) {
  const all = section.series;
  const [x0, x1] = extent(all.flatMap((series) => series.x));
  let [y0, y1] = section.y_range || extent(all.flatMap((series) => [...series.y, ...series.low, ...series.high]));
  if (!section.y_range) [y0, y1] = [y0 - 0.06 * (y1 - y0 || 1), y1 + 0.06 * (y1 - y0 || 1)];
  const colour = colours(all);
  const draw = (width) => {
    const height = Math.max(180, Math.min(300, width * 0.42));
    const x = scale([x0, x1], [ROOM.left, width - ROOM.right]), y = scale([y0, y1], [height - ROOM.bottom, ROOM.top]);
    const picture = frame(section, width, height, x, y, ticks(x0, x1, width / 90, all.every((series) => series.x.every(Number.isInteger))), ticks(y0, y1, 5));
    for (const [at, what] of section.marks) picture.append(svg("line", { class: "check", x1: x(at), x2: x(at), y1: ROOM.top, y2: height - ROOM.bottom }, svg("title", {}, what)));
    const points = [];
    all.forEach((series, k) => {
      const found = series.x.map((at, i) => [at, series.y[i], i]).filter(([, value]) => known(value));
      const style = `series ${series.role} ${colour[k]}`;
      if (series.low.length) {
        const inside = found.filter(([, , i]) => known(series.low[i]) && known(series.high[i]));
        const edge = [...inside.map(([at, , i]) => [x(at), y(series.high[i])]), ...inside.reverse().map(([at, , i]) => [x(at), y(series.low[i])])];
        picture.append(svg("path", { class: `band ${colour[k]}`, d: `M${edge.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L")}Z` }));
      }
      if (series.line && found.length > 1) picture.append(svg("path", { class: style, d: `M${found.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}` }));
      if (series.role !== "reference") {
        for (const [at, value, i] of found) {
          points.push([x(at), y(value), series, i]);
          if (!series.line || found.length < 40) picture.append(svg("circle", { class: `${style} dot`, cx: x(at).toFixed(1), cy: y(value).toFixed(1), r: series.line ? (series.role === "main" ? 2.6 : 1.6) : 5 }));
        }
      }
    });
    nearestTip(picture, width, points, ([, , series, i]) => [series.name, `${section.x_label} ${number(series.x[i])}`, `${section.y_label} ${number(series.y[i])}${series.low.length ? ` [${number(series.low[i])}, ${number(series.high[i])}]` : ""}`]);
    return picture;
  };
  const rows = () => all.flatMap((series) => series.x.map((at, i) => [series.name, at, series.y[i], ...(series.low.length ? [series.low[i], series.high[i]] : [])]));
  const bounds = all.some((series) => series.low.length) ? ["low", "high"] : [];
  return [keys(all, colour), drawn(draw), dataTable(["series", section.x_label, section.y_label, ...bounds], rows)];
}

/* One colour for each series that is about something; the rest are grey. */
function colours(all) {
  let next = 0;
  return all.map((series) => (series.role === "main" ? `c${next++ % 6}` : "grey"));
}

function keys(all, colour) {
  const groups = new Map();
  all.forEach((series, k) => {
    const name = series.role === "other" && all.length > 6 ? "others that came to an end" : series.role === "faded" ? "stopped" : series.name;
    if (!groups.has(name)) groups.set(name, [series, colour[k]]);
  });
  return html("div", { class: "legend" }, ...[...groups].slice(0, 12).map(([name, [series, style]]) => html("span", { class: "item" },
    svg("svg", { width: 22, height: 10, viewBox: "0 -5 22 10", "aria-hidden": "true" },
      series.line ? svg("path", { class: `series ${series.role} ${style}`, d: "M0 0H22" }) : svg("circle", { class: `series ${series.role} ${style} dot`, cx: 11, cy: 0, r: 4 })),
    name)));
}

function frame(section, width, height, x, y, along, up) {
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${section.title}. ${section.lead}` });
  for (const value of up) {
    picture.append(svg("line", { class: "grid", x1: ROOM.left, x2: width - ROOM.right, y1: y(value), y2: y(value) }),
      svg("text", { x: ROOM.left - 8, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  }
  for (const value of along) picture.append(svg("text", { x: x(value), y: height - ROOM.bottom + 18, "text-anchor": "middle" }, number(value)));
  picture.append(svg("text", { class: "axis", x: width - ROOM.right, y: height - 4, "text-anchor": "end" }, section.x_label));
  if (section.y_label) picture.append(svg("text", { class: "axis", x: -(height - ROOM.bottom + ROOM.top) / 2, y: 11, "text-anchor": "middle", transform: "rotate(-90)" }, section.y_label));
  return picture;
}

function nearestTip(picture, width, points, lines) {
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const [px, py] = [((event.clientX - box.left) * width) / box.width, ((event.clientY - box.top) * width) / box.width];
    let best = null, distance = 30 ** 2;
    for (const point of points) {
      const far = (point[0] - px) ** 2 + (point[1] - py) ** 2;
      if (far < distance) [best, distance] = [point, far];
    }
    if (best) showTip(event, lines(best));
    else hideTip();
  });
  picture.addEventListener("pointerleave", hideTip);
}

function stack(section) {
  const draw = (width) => {
    const height = Math.max(180, Math.min(280, width * 0.4));
    const across = (width - ROOM.left - ROOM.right) / section.x.length;
    const x = (k) => ROOM.left + (k + 0.5) * across, y = scale([0, 1], [height - ROOM.bottom, ROOM.top]);
    const picture = frame({ ...section, y_label: "" }, width, height, x, (v) => y(v / 100), [], [0, 25, 50, 75, 100]);
    const every = Math.ceil(section.x.length / (width / 48));
    const blocks = [];
    section.x.forEach((at, k) => {
      if (k % every === 0) picture.append(svg("text", { x: x(k), y: height - ROOM.bottom + 18, "text-anchor": "middle" }, number(at)));
      let sum = 0;
      const main = section.main[k];
      const order = section.names.map((name, i) => [name, section.shares[k][i]]).filter(([, part]) => part);
      order.sort((a, b) => Number(b[0] === main) - Number(a[0] === main) || b[1] - a[1]);
      for (const [name, part] of order) {
        const wide = Math.min(44, across * 0.78);
        picture.append(svg("rect", { class: name === main ? "block main" : "block", x: x(k) - wide / 2, width: wide, y: y(sum + part), height: Math.max(0.5, y(sum) - y(sum + part)) }));
        blocks.push([x(k), (y(sum) + y(sum + part)) / 2, name, part, at]);
        sum += part;
      }
    });
    nearestTip(picture, width, blocks, ([, , name, part, at]) => [name, `${percent(part)} of the weight`, `${section.x_label} ${number(at)}`]);
    return picture;
  };
  const rows = () => section.x.flatMap((at, k) => section.names.map((name, i) => [name, at, section.shares[k][i]]).filter(([, , part]) => known(part)));
  return [drawn(draw), dataTable(["particle", section.x_label, "share of the weight"], rows)];
}

function bars(section) {
  const total = (bar) => bar.parts.reduce((sum, part) => sum + part, 0);
  const most = Math.max(...section.bars.map(total), section.reference ? section.reference[1] : 0) || 1;
  const order = [...section.bars].sort((a, b) => Number(b.role === "main") - Number(a.role === "main") || total(b) - total(a));
  const line = (bar) => html("li", { class: `bar ${bar.role}` },
    html("span", { class: "label" }, bar.label),
    track(bar.parts, most, section.reference),
    html("span", { class: "amount" }, `${number(total(bar))}${bar.note ? ` · ${bar.note}` : ""}`));
  const list = html("ul", { class: "bars" }, ...order.slice(0, 12).map(line));
  const parts = html("div", { class: "legend" }, ...section.parts.map((name, k) => html("span", { class: "item" }, svg("svg", { width: 14, height: 10, "aria-hidden": "true" }, svg("rect", { class: `part p${k}`, width: 14, height: 10 })), `${name} ${section.unit}`)),
    section.reference ? html("span", { class: "item" }, svg("svg", { width: 8, height: 14, "aria-hidden": "true" }, svg("line", { class: "mark", x1: 4, x2: 4, y1: 0, y2: 14 })), `${section.reference[0]}: ${number(section.reference[1])}`) : null);
  const rest = order.length > 12 ? html("button", { type: "button", class: "more", on: { click: (event) => { list.append(...order.slice(12).map(line)); event.target.remove(); } } }, `Show all ${order.length}`) : null;
  return [parts, list, rest];
}

function track(parts, most, reference) {
  const picture = svg("svg", { class: "track", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  let from = 0;
  parts.forEach((part, k) => {
    picture.append(svg("rect", { class: `part p${k}`, x: from, y: 0, width: (100 * part) / most, height: 10 }));
    from += (100 * part) / most;
  });
  if (reference) picture.append(svg("line", { class: "mark", x1: (100 * reference[1]) / most, x2: (100 * reference[1]) / most, y1: 0, y2: 10, "vector-effect": "non-scaling-stroke" }));
  return picture;
}

function forest(section) {
  const ends = section.rows.flatMap((row) => [row.low, row.high, row.mean]);
  let [low, high] = extent(known(section.zero) ? [...ends, section.zero] : ends);
  const margin = 0.06 * (high - low || 1);
  [low, high] = [low - margin, high + margin];
  const at = scale([low, high], [0, 100]);
  let group = "";
  const rows = section.rows.flatMap((row) => {
    const found = [];
    if (row.group && row.group !== group) found.push(html("li", { class: "group" }, row.group));
    group = row.group;
    const picture = svg("svg", { class: "interval", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" });
    const upright = (style, x, from, to) => picture.append(svg("line", { class: style, x1: x, x2: x, y1: from, y2: to, "vector-effect": "non-scaling-stroke" }));
    if (known(section.zero)) upright("zero", at(section.zero), 0, 20);
    const sure = known(section.zero) && known(row.low) && (row.low > section.zero ? "better" : row.high < section.zero ? "worse" : "");
    if (known(row.low)) {
      picture.append(svg("line", { class: `whisker ${sure || ""}`, x1: at(row.low), x2: at(row.high), y1: 10, y2: 10, "vector-effect": "non-scaling-stroke" }));
      upright(`whisker ${sure || ""}`, at(row.low), 6, 14);
      upright(`whisker ${sure || ""}`, at(row.high), 6, 14);
    }
    if (known(row.mean)) upright(`mean ${sure || ""}`, at(row.mean), 4, 16);
    found.push(html("li", { class: "estimate" }, html("span", { class: "label" }, row.label), picture,
      html("span", { class: "amount" }, `${number(row.mean)}${known(row.low) ? ` [${number(row.low)}, ${number(row.high)}]` : ""}`)));
    return found;
  });
  return [html("ul", { class: "forest" }, ...rows), html("p", { class: "muted axis" }, `${section.x_label}; the thick mark is the mean, the line its 95 % interval${known(section.zero) ? ", the dashed line no difference" : ""}`)];
}

function changes(section) {
  return section.changes.map((change) => html("details", { class: "change", open: section.changes.length < 4 },
    html("summary", {}, html("span", { class: `fate ${change.accepted ? "selected" : "pruned"}` }, change.accepted ? "accepted" : "rejected"), ` ${change.title}`),
    change.evidence.length ? html("dl", { class: "facts" }, ...change.evidence.map((fact) => html("div", {}, html("dt", {}, fact.label), html("dd", {}, fact.text)))) : null,
    html("pre", { class: "diff", tabindex: "0" }, ...change.lines.map(([sign, text]) => html("span", { class: sign === "+" ? "added" : sign === "-" ? "removed" : "kept" }, `${sign} ${text}\n`)))));
}
