/* Draws every section of the report below its title and lead. */

const KINDS = {
  genealogy, curves, stack, bars, forest, changes,
  table: (section) => [table(section.columns, section.rows, section.strong)],
  text: () => [],
};

const report = JSON.parse(document.getElementById("report").textContent);
const [place, contents] = [document.getElementById("sections"), document.getElementById("contents")];

report.sections.forEach((section, k) => {
  const id = `s${k}`;
  contents.append(html("a", { href: `#${id}` }, section.title));
  place.append(html("section", { id, "aria-labelledby": `${id}-title`, class: `kind-${section.kind}` },
    html("h2", { id: `${id}-title` }, section.title), html("p", { class: "lead" }, section.lead), ...KINDS[section.kind](section)));
});
document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
document.addEventListener("scroll", hideTip, { passive: true });
document.documentElement.dataset.ready = "yes";
