/* The genealogy: one row per lane, one column per step. The pointer finds the nearest state; keys walk the tree. */

const EDGE = { left: 34, right: 52, top: 34, bottom: 14 };
const NAMED = 34; /* pixels between two steps from which a name fits behind a line that ends before the last one */
const END = { pruned: "cross", failed: "cross", truncated: "stop", interrupted: "stop", selected: "star", finished: "ring" };

function genealogy(section) {
  const states = section.states;
  const byId = new Map(states.map((state, index) => [state.id, index]));
  const parents = states.map((state) => (known(state.parent) ? byId.get(state.parent) : -1));
  const children = states.map(() => []);
  parents.forEach((parent, index) => parent >= 0 && children[parent].push(index));
  const worth = carriedValues(states, parents);
  const alive = survivors(states, children);
  const [low, high] = extent(states.map((state) => state.value));
  const shade = (value) => (known(value) ? `v${Math.min(8, Math.floor(9 * ((value - low) / (high - low || 1))))}` : "unknown");
  const steps = Math.max(1, ...states.map((state) => state.step));
  const lanes = Math.max(0, ...states.map((state) => state.lane)) + 1;
  const detail = html("aside", { class: "detail", "aria-label": "The chosen point", "aria-live": "polite" });
  const scroll = html("div", { class: "scroll" });
  let chosen = -1, show = () => {};

  function draw(width) {
    const across = Math.max(14, Math.min(72, (width - EDGE.left - EDGE.right) / steps));
    const down = lanes > 40 ? 13 : lanes > 20 ? 18 : 25;
    const x = (index) => EDGE.left + states[index].step * across;
    const y = (index) => EDGE.top + states[index].lane * down + down / 2;
    const size = { width: EDGE.left + EDGE.right + steps * across, height: EDGE.top + EDGE.bottom + lanes * down };
    const [edges, nodes] = [svg("g", { class: "edges" }), svg("g", { class: "nodes" })];
    states.forEach((state, index) => {
      const faded = alive[index] ? "" : " gone";
      if (parents[index] >= 0) {
        edges.append(svg("path", {
          class: `${shade(worth[index])}${faded}${state.selected ? " chosen" : ""}`,
          d: link(x(parents[index]), y(parents[index]), x(index), y(index)),
          "stroke-width": (thickness(state.share) + (state.selected ? 2 : 0)).toFixed(1),
        }));
      }
      nodes.append(mark(state, `n${index}`, x(index), y(index), shade(worth[index]), faded));
    });
    const called = svg("g", { class: "names", "aria-hidden": "true" });
    for (const branch of section.branches) {
      const index = byId.get(`${branch.name}@${branch.steps}`);
      if (index === undefined || (across < NAMED && branch.steps < steps)) continue;
      const star = states[index].fate === "selected" ? 4 : 0;
      called.append(svg("text", {
        class: branch.selected ? "chosen" : undefined, x: x(index) + 8 + star, y: y(index) + 4, "font-size": down < 18 ? 9 : 11,
      }, branch.name));
    }
    const halo = svg("path", { class: "halo" }), spot = svg("circle", { class: "spot", r: 10 });
    const picture = svg("svg", {
      class: "tree", width: size.width, height: size.height, viewBox: `0 0 ${size.width} ${size.height}`,
      role: "listbox", tabindex: "0", "aria-label": `Tree of ${section.branches.length} particles over ${steps} steps. Arrow keys walk along it.`,
    }, columns(section, steps, across, size.height), halo, edges, nodes, called, spot);

    show = (index) => {
      const path = [];
      for (let at = index; at >= 0; at = parents[at]) path.unshift(at);
      halo.setAttribute("d", path.map((at, k) => (k ? link(x(path[k - 1]), y(path[k - 1]), x(at), y(at)) : "")).join(""));
      spot.setAttribute("cx", x(index));
      spot.setAttribute("cy", y(index));
      picture.setAttribute("aria-activedescendant", `n${index}`);
      nodes.querySelector("[aria-selected=true]")?.removeAttribute("aria-selected");
      nodes.children[index].setAttribute("aria-selected", "true");
      keepInView(scroll, x(index), y(index));
    };
    const nearest = (event) => {
      const box = picture.getBoundingClientRect();
      const ratio = size.width / box.width;
      const [px, py] = [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
      let best = -1, distance = Math.max(16, across * 0.7) ** 2;
      states.forEach((_, index) => {
        const far = (x(index) - px) ** 2 + (y(index) - py) ** 2;
        if (far < distance) [best, distance] = [index, far];
      });
      return best;
    };
    picture.addEventListener("pointermove", (event) => {
      const index = nearest(event);
      picture.classList.toggle("over", index >= 0);
      if (index < 0) hideTip();
      else showTip(event, tipLines(states[index], worth[index]));
    });
    picture.addEventListener("pointerleave", hideTip);
    picture.addEventListener("click", (event) => nearest(event) >= 0 && choose(nearest(event)));
    picture.addEventListener("keydown", (event) => {
      const next = step(event.key);
      if (next === undefined) return;
      event.preventDefault();
      if (next >= 0) choose(next);
    });
    if (chosen >= 0) show(chosen);
    return picture;
  }

  /* The state that a key leads to; -1 where there is none, undefined for other keys. */
  function step(key) {
    const at = states[chosen];
    if (key === "ArrowLeft") return parents[chosen];
    if (key === "ArrowRight") return [...children[chosen]].sort((a, b) => Math.abs(states[a].lane - at.lane) - Math.abs(states[b].lane - at.lane))[0] ?? -1;
    if (key === "Home") return ancestors(chosen)[0];
    if (key === "End") return states.findIndex((state) => state.fate === "selected");
    if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
    const sign = key === "ArrowUp" ? -1 : 1;
    let best = -1;
    states.forEach((state, index) => {
      const away = sign * (state.lane - at.lane);
      if (state.step === at.step && away > 0 && (best < 0 || away < sign * (states[best].lane - at.lane))) best = index;
    });
    return best;
  }

  function ancestors(index) {
    const path = [index];
    while (parents[path[0]] >= 0) path.unshift(parents[path[0]]);
    return path;
  }

  function choose(index) {
    chosen = index;
    hideTip();
    show(index);
    detail.replaceChildren(...describe(states, ancestors(index), children[index], worth[index], choose));
  }

  const box = drawn(draw);
  scroll.append(box);
  const last = states.findIndex((state) => state.fate === "selected");
  choose(last >= 0 ? last : 0);
  return [legend(low, high, states), html("div", { class: "split" }, scroll, detail)];
}

/* V of the last state on the way to each that had one. */
function carriedValues(states, parents) {
  const found = [];
  states.forEach((state, index) => found.push(known(state.value) ? state.value : parents[index] >= 0 ? found[parents[index]] : null));
  return found;
}

/* Whether anything that came to an end of its own, or still runs, descends from a state. */
function survivors(states, children) {
  const found = states.map((state) => ["selected", "finished", "truncated", "running"].includes(state.fate));
  for (let index = states.length - 1; index >= 0; index -= 1) found[index] ||= children[index].some((child) => found[child]);
  return found;
}

const thickness = (share) => 1.4 + 11 * (share || 0) ** 0.75;

function link(x0, y0, x1, y1) {
  if (y0 === y1) return `M${x0} ${y0}H${x1}`;
  const middle = (x1 - x0) / 2;
  return `M${x0} ${y0}C${x0 + middle} ${y0} ${x1 - middle} ${y1} ${x1} ${y1}`;
}

function mark(state, id, x, y, shade, faded) {
  const kind = END[state.fate];
  const radius = state.weighed ? 2.6 + 5 * Math.sqrt(state.share || 0) : 2.2;
  const at = `translate(${x.toFixed(1)} ${y.toFixed(1)})`;
  const shapes = [];
  if (kind === "cross") shapes.push(svg("path", { class: "cross", d: "M-4 -4L4 4M-4 4L4 -4" }));
  else if (kind === "stop") shapes.push(svg("path", { class: "stop", d: "M0 -6V6" }));
  else if (kind === "star") shapes.push(svg("path", { class: "star", d: "M0 -9L2.6 -3.3L8.8 -2.7L4.1 1.4L5.5 7.5L0 4.2L-5.5 7.5L-4.1 1.4L-8.8 -2.7L-2.6 -3.3Z" }));
  else shapes.push(svg("circle", { r: (kind === "ring" ? 4.5 : radius).toFixed(1) }));
  const label = `${state.particle}, step ${state.step}: ${state.fate}, value ${number(state.value)}, weight ${percent(state.share)}`;
  return svg("g", { id, role: "option", "aria-label": label, class: `${shade}${faded}${kind ? ` ${kind}-end` : state.weighed ? "" : " passed"}`, transform: at }, ...shapes);
}

/* Steps along the top, and where runs were replaced. */
function columns(section, steps, across, height) {
  const group = svg("g", { class: "columns" });
  for (const weighing of section.weighings) {
    if (!weighing.offspring.includes(0)) continue;
    const x = EDGE.left + weighing.step * across;
    group.append(svg("line", { class: "check", x1: x, x2: x, y1: EDGE.top - 8, y2: height - 4 }));
  }
  const every = ticks(0, steps, Math.max(2, Math.floor((steps * across) / 44))).filter(Number.isInteger);
  for (const step of every) {
    group.append(svg("text", { x: EDGE.left + step * across, y: 16, "text-anchor": "middle" }, step === 0 ? "start" : String(step)));
  }
  return group;
}

function keepInView(scroll, x, y) {
  const margin = 60;
  if (x - margin < scroll.scrollLeft) scroll.scrollLeft = x - margin;
  if (x + margin > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = x + margin - scroll.clientWidth;
  if (y - margin < scroll.scrollTop) scroll.scrollTop = y - margin;
  if (y + margin > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = y + margin - scroll.clientHeight;
}

function tipLines(state, worth) {
  const value = known(state.value) ? `value ${number(state.value)}` : known(worth) ? `value ${number(worth)} when last rated` : "not rated";
  return [`${state.particle}, step ${state.step}`, `${value} · weight ${percent(state.share)}`, gist(state.text), state.why].filter(Boolean);
}

function describe(states, path, children, worth, choose) {
  const index = path[path.length - 1], state = states[index];
  const before = path.slice(0, -1);
  const go = (label, target, hint) => html("button", { type: "button", disabled: target === undefined, title: hint, on: { click: () => choose(target) } }, label);
  const facts = [["value", known(state.value) ? number(state.value) : known(worth) ? `${number(worth)} (earlier)` : "not rated"], ["weight", percent(state.share)]];
  if (state.reward) facts.push(["reward of this step", number(state.reward)]);
  const seen = html("details", {}, html("summary", {}, `What the agent saw before this step (${before.length} ${before.length === 1 ? "step" : "steps"})`));
  seen.addEventListener("toggle", () => {
    if (seen.open && seen.children.length === 1) seen.append(...before.flatMap((at) => turnBlocks(states[at].text)));
  });
  const own = turnBlocks(state.text);
  return [
    html("div", { class: "head" },
      html("h3", {}, `${state.particle}, ${state.step ? `step ${state.step}` : "start"}`),
      html("span", { class: `fate ${state.fate.replace(" ", "-")}` }, state.fate)),
    html("div", { class: "buttons" },
      go("← step before", before[before.length - 1]), go("step after →", children[0])),
    html("dl", { class: "facts" }, ...facts.map(([name, text]) => html("div", {}, html("dt", {}, name), html("dd", {}, text)))),
    state.why ? html("p", { class: "why" }, state.why) : null,
    html("h4", {}, state.step ? "What it did and got in this step" : "What it was given"),
    ...(own.length ? own : [html("p", { class: "muted" }, "No text is kept of this step.")]),
    before.length ? seen : null,
  ].filter(Boolean);
}

function legend(low, high, states) {
  const rated = states.some((state) => known(state.value));
  const cut = states.some((state) => END[state.fate] === "stop");
  const item = (shape, text) => html("span", { class: "item" }, svg("svg", { width: 22, height: 16, viewBox: "-11 -8 22 16", "aria-hidden": "true" }, ...shape), text);
  const ramp = Array.from({ length: 9 }, (_, k) => svg("rect", { class: `v${k}`, x: 14 * k, y: 0, width: 14, height: 10 }));
  return html("div", { class: "legend" },
    rated ? html("span", { class: "item" }, `value ${number(low)}`, svg("svg", { class: "ramp", width: 126, height: 10, "aria-hidden": "true" }, ...ramp), number(high)) : null,
    item([svg("path", { class: "star", d: "M0 -8L2.3 -3L7.8 -2.4L3.6 1.2L4.9 6.7L0 3.7L-4.9 6.7L-3.6 1.2L-7.8 -2.4L-2.3 -3Z" })], "selected"),
    item([svg("circle", { class: "ringed", r: 4.5 })], "came to its end"),
    item([svg("path", { class: "cross", d: "M-4 -4L4 4M-4 4L4 -4" })], "stopped or failed"),
    cut ? item([svg("path", { class: "stop", d: "M0 -6V6" })], "paused, or cut off by a limit") : null,
    item([svg("line", { class: "check", x1: 0, x2: 0, y1: -8, y2: 8 })], "runs were replaced"));
}
