/* The transcript, turn by turn: who said it, and what. */

const TURN = /<\|im_start\|>([^\n]*)\n([\s\S]*?)<\|im_end\|>\n?/g;
const WHO = { system: "instructions", user: "to the agent", assistant: "agent", tool: "tool result" };

function turns(text) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(TURN)) {
    if (match.index > end) found.push(["", text.slice(end, match.index)]);
    found.push([match[1], match[2]]);
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push(["", text.slice(end)]);
  return found.filter(([, said]) => said.trim());
}

function turnBlocks(text) {
  return turns(text).map(([role, said]) => {
    const kind = ["system", "user", "assistant", "tool"].includes(role) ? role : "other";
    return html("div", { class: `turn ${kind}` },
      role ? html("p", { class: "who" }, WHO[role] || role) : null,
      html("pre", {}, said.trim()));
  });
}

/* The first words of what a step did, for a tooltip. */
function gist(text) {
  const all = turns(text);
  const own = all.find(([role]) => role === "assistant") || all[0];
  const said = own ? own[1].trim().replace(/\s+/g, " ") : "";
  return said.length > 90 ? `${said.slice(0, 90)}…` : said;
}
