
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const blamed = new Set(data.blamed);
  const ROWS = 12; // of a group, before the button that shows more
  const MORE = 100; // rows, groups or ranks that such a button adds
  const LANES = 6; // groups of one importance that are open at first

  const MARKS = {
    d: ["✓ done", "finished"],
    w: ["waits", "entered, not finished: the oldest one that it waits in"],
    q: ["queued", "entered, behind something that the rank waits in"],
    r: ["running", "seen on the device, not finished"],
    g: ["gave up", "timed out or failed"],
    e: ["ended", "finished or given up: this recorder shows both alike"],
    u: ["?", "this recorder never says whether it finished"],
    n: ["not entered", "the rank did not come to it"],
    b: ["", "nothing known"],
  };

  // Elements. Text is only ever set as text.

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "onclick") element.addEventListener("click", value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== undefined && value !== "") element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  // Adds the first items at once and the rest behind a button.
  function addAll(items, first, noun, add, place) {
    let shown = 0;
    let button = null;
    const next = (count) => {
      for (const item of items.slice(shown, shown + count)) add(item);
      shown = Math.min(items.length, shown + count);
      if (button) button.remove();
      const left = items.length - shown;
      if (left > 0) {
        const text = left > MORE ? `show ${MORE} of ${left} more ${noun}` : `show ${left} more ${noun}`;
        button = make("button", { class: "more", type: "button", onclick: () => next(MORE) }, text);
        place(button);
      }
    };
    next(first);
  }

  // Ranks: "0-11, 13".

  function* each(text) {
    for (const run of text.split(", ")) {
      const [from, to] = run.split("-").map(Number);
      for (let rank = from; rank <= (to === undefined ? from : to); rank++) yield rank;
    }
  }
  const ranksTitle = (text) => (/^\d+$/.test(text) ? `rank ${text}` : `ranks ${text}`);
  function has(text, rank) {
    return text.split(", ").some((run) => {
      const [from, to] = run.split("-").map(Number);
      return from <= rank && rank <= (to === undefined ? from : to);
    });
  }
  const bare = (text) => text.replace(/^ranks? /, "");
  const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const seconds = (value) => (value >= 100 ? `${Math.round(value)} s` : `${Number(value.toPrecision(3))} s`);

  // Details.

  const detail = document.getElementById("detail");
  let opener = null;

  function openDetail(from, title, ...content) {
    if (opener === from && !detail.hidden) return detail.focus(); // selected again: go into it
    if (opener) opener.removeAttribute("aria-pressed");
    opener = from;
    opener.setAttribute("aria-pressed", "true");
    const close = make("button", { class: "close", type: "button", onclick: closeDetail }, "close (Esc)");
    detail.replaceChildren(close, make("h3", null, title), ...content);
    detail.hidden = false;
    document.body.classList.add("detailed");
    detail.scrollTop = 0;
  }
  function closeDetail() {
    if (detail.hidden) return;
    detail.hidden = true;
    document.body.classList.remove("detailed");
    if (opener) {
      opener.removeAttribute("aria-pressed");
      opener.focus();
    }
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeDetail();
  });

  function pairs(entries) {
    const list = make("dl");
    for (const [name, value] of entries) {
      if (value === "" || value === null || value === undefined) continue;
      list.append(make("dt", null, name), make("dd", null, String(value)));
    }
    return list;
  }

  function stackList(number) {
    if (number < 0) return make("p", { class: "empty" }, "No stack was recorded.");
    const list = make("ol", { class: "stack mono" });
    for (const index of data.stacks[number]) {
      const [name, file, line, library] = data.frames[index];
      const place = make("small", null, `${file}:${line}`);
      list.append(make("li", { class: library ? "library" : "" }, name, place));
    }
    return list;
  }

  // What is known of the processes of some ranks besides their dumps.
  function processDetails(ranks) {
    const wanted = [...each(ranks)].slice(0, 5000);
    const found = [];
    for (const process of data.processes) {
      const mine = wanted.filter((rank) => has(process.ranks, rank));
      if (!mine.length) continue;
      const who = mine.length === 1 ? `rank ${mine[0]}` : `${mine.length} ranks: ${short(mine.join(", "), 60)}`;
      found.push(make("h4", null, `Process of ${who}`), processFacts(process));
      if (process.stack >= 0) found.push(make("h4", null, "Main thread, innermost first"), stackList(process.stack));
      if (found.length > 40) break;
    }
    return found;
  }
  function processFacts(process) {
    return pairs([
      ["state", [process.life, process.why].filter(Boolean).join(", ")],
      ["committed", process.step === null ? "" : `step ${process.step}`],
      ["interpreter lock", process.gil ? "held by the main thread" : ""],
      ["dump", process.no_dump ? `missing: ${process.no_dump}` : ""],
    ]);
  }

  function sinceText(since) {
    const known = (since || []).filter((value) => value !== null);
    if (!known.length) return "";
    const low = known.reduce((a, b) => Math.min(a, b));
    const high = known.reduce((a, b) => Math.max(a, b));
    const text = seconds(low) === seconds(high) ? seconds(low) : `${seconds(low).replace(" s", "")} to ${seconds(high)}`;
    return text;
  }

  function showCell(button, lane, row, at) {
    const mark = row.marks[at];
    const number = callOf(lane, row, at);
    const call = number < 0 ? null : data.calls[number];
    const usual = lane.columns[at][1] < 0 ? null : data.calls[lane.columns[at][1]];
    const sequence = lane.transfers ? "" : ` ${lane.columns[at][0]}`;
    const title = `${(call || usual || { name: "operation" }).name}${sequence} of ${lane.label}`;
    const differs = call && usual && !lane.transfers && !same(call, usual);
    const facts = pairs([
      ["ranks", row.ranks],
      ["state", `${MARKS[mark][0].replace("✓ ", "") || "empty"}: ${MARKS[mark][1]}`],
      ["called", (mark === "w" || mark === "r") && sinceText(row.since) ? `${sinceText(row.since)} before the last event of its host` : ""],
      ["tensors", call ? call.tensors : ""],
      ["others called", differs ? `${usual.name} ${usual.tensors}` : ""],
      ["timeout", call && call.timeout ? seconds(call.timeout / 1000) : ""],
    ]);
    const asked = call || (mark === "n" ? usual : null);
    const heading = call ? "Called at, innermost first" : "Where the other ranks called it, innermost first";
    const stack = asked ? [make("h4", null, heading), stackList(asked.stack)] : [];
    const none = !asked && make("p", { class: "empty" }, "No entry of this operation is left in the dump.");
    openDetail(button, title, facts, ...stack, ...(none ? [none] : []), ...processDetails(row.ranks));
  }

  function showRow(button, lane, row) {
    const known = processDetails(row.ranks);
    const nothing = make("p", { class: "empty" }, "Nothing but the dump is known of these processes.");
    const front = frontOf(row);
    const call = row.empty || front < 0 ? -1 : callOf(lane, row, front);
    const stack = call < 0 ? [] : [make("h4", null, `Waits in ${data.calls[call].name}, called at`), stackList(data.calls[call].stack)];
    const facts = pairs([
      ["group", lane.label],
      ["members", lane.members],
      ["dump", row.empty ? `missing: ${row.empty}` : ""],
      ["verdict", row.blamed ? faultsOf(row) : ""],
    ]);
    openDetail(button, ranksTitle(row.ranks), facts, ...stack, ...(known.length ? known : [nothing]));
  }
  function faultsOf(row) {
    const kinds = new Set([...each(row.ranks)].map((rank) => data.faults[rank]).filter(Boolean));
    return ["blamed", ...[...kinds].map((kind) => kind.replaceAll("_", " "))].join(": ");
  }

  // Lanes.

  const callOf = (lane, row, at) => (row.calls && at in row.calls ? row.calls[at] : lane.columns[at][1]);
  const same = (a, b) => a.alike === b.alike;
  // The first column that a row has not finished: its frontier.
  const frontOf = (row) => [...(row.marks || "")].findIndex((mark) => "wqrgn".includes(mark));

  function laneHead(lane) {
    const head = make("tr", null, make("th", { class: "corner" }, lane.transfers ? "ranks (newest on the right)" : "ranks"), make("th", { class: "corner", title: "from the call that a rank waits in to the last event of its host" }, "called, before last event"));
    const fronts = new Set(lane.rows.filter((row) => !row.empty).map(frontOf));
    lane.columns.forEach(([number, call], at) => {
      if (gapBefore(lane, at)) head.append(make("th", { class: "gap", title: "operations left out" }, "…"));
      const name = call < 0 ? (lane.transfers ? "" : "no entry") : data.calls[call].name;
      const title = call < 0 ? "" : `${data.calls[call].name} ${data.calls[call].tensors}`;
      const front = !lane.transfers && fronts.has(at);
      head.append(make("th", { scope: "col", class: front ? "front" : "", title }, make("b", null, lane.transfers ? "" : String(number)), ...breakable(short(name, 32))));
    });
    return make("thead", null, head);
  }
  // Long names break behind their underscores.
  const breakable = (name) => name.split(/(?<=_)(?=[^_])/).flatMap((part) => [part, make("wbr")]);
  const gapBefore = (lane, at) => at > 0 && lane.columns[at][0] !== lane.columns[at - 1][0] + 1;

  function laneRow(lane, row, single) {
    const name = make("button", { class: "name", type: "button", title: row.ranks, onclick: () => showRow(name, lane, row) }, short(ranksTitle(row.ranks), 34));
    const who = make("div", { class: "who" }, name);
    if (row.blamed) who.append(make("span", { class: "tag blamed" }, "◆ blamed"));
    const element = make("tr", { class: [row.blamed ? "blamed" : "", single ? "single" : ""].join(" ").trim(), "data-ranks": row.ranks }, make("th", { scope: "row" }, who));
    if (!single && row.size > 1) who.append(unfoldButton(lane, row, element));
    if (row.empty) {
      const span = lane.columns.length + lane.columns.filter((_, at) => gapBefore(lane, at)).length;
      element.append(make("td"), make("td", { colspan: span }, make("div", { class: "hole", title: row.empty }, `no dump: ${row.empty.replace(/^no dump[:,]? ?/, "")}`)));
      return element;
    }
    element.append(make("td", { class: "since" }, sinceText(row.since)));
    const front = frontOf(row);
    [...row.marks].forEach((mark, at) => {
      if (gapBefore(lane, at)) element.append(make("td", { class: "gap" }, "…"));
      element.append(make("td", { class: !lane.transfers && at === front ? "front" : "" }, cell(lane, row, at, at === Math.max(front, 0))));
    });
    return element;
  }

  function cell(lane, row, at, reachable) {
    const mark = row.marks[at];
    if (mark === "b") return make("span", { class: "cell b" }, "");
    const number = callOf(lane, row, at);
    const usual = lane.columns[at][1];
    const call = number < 0 ? null : data.calls[number];
    const differs = !lane.transfers && call && usual >= 0 && !same(call, data.calls[usual]);
    const text = lane.transfers && call ? `${call.name.replace(/rank /, "")} ${mark === "d" ? "✓" : MARKS[mark][0]}` : MARKS[mark][0];
    const shown = differs ? `≠ ${text}` : text;
    const label = `${ranksTitle(row.ranks)}, ${call ? call.name : "operation"} ${lane.transfers ? "" : lane.columns[at][0]}: ${MARKS[mark][0]}${differs ? ", differs from the others" : ""}`;
    const button = make("button", { class: `cell ${mark}${differs ? " differs" : ""}`, type: "button", tabindex: reachable ? "0" : "-1", "aria-label": label, title: differs ? `${call.name} ${call.tensors}` : "", onclick: () => showCell(button, lane, row, at) }, shown);
    return button;
  }

  function unfoldButton(lane, row, element) {
    let added = [];
    const button = make("button", { class: "unfold", type: "button", "aria-expanded": "false" }, `▸ ${row.size}`);
    button.setAttribute("aria-label", `show each of the ${row.size} ranks`);
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!open));
      button.textContent = `${open ? "▸" : "▾"} ${row.size}`;
      if (open) {
        added.forEach((one) => one.remove());
        added = [];
        return;
      }
      const ranks = [...each(row.ranks)].map((rank, at) => ({ ...row, ranks: String(rank), size: 1, since: row.since && [row.since[at]] }));
      let last = element;
      const place = (one) => {
        last.after(one);
        added.push(one);
        return one;
      };
      addAll(ranks, MORE, "ranks", (one) => { last = place(laneRow(lane, one, true)); },
        (more) => place(make("tr", { class: "single" }, make("th", null, more))));
    });
    return button;
  }

  function laneTable(lane) {
    const body = make("tbody");
    const table = make("table", { class: "grid" }, laneHead(lane), body);
    const scroll = make("div", { class: "scroll" }, table);
    addAll(lane.rows, ROWS, "rows", (row) => body.append(laneRow(lane, row, false)), (button) => scroll.append(button));
    table.addEventListener("keydown", (event) => moveFocus(event, body));
    return scroll;
  }

  // Arrow keys go from cell to cell; Tab stops once a row.
  function moveFocus(event, body) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const from = event.target.closest("td, th");
    if (!step || !from) return;
    event.preventDefault();
    const rows = [...body.rows];
    let row = rows.indexOf(from.parentElement);
    let column = from.cellIndex;
    for (;;) {
      row += step[0];
      column += step[1];
      const next = rows[row] && rows[row].cells[column];
      if (!next) return;
      const button = next.querySelector("button");
      if (button) return button.focus();
    }
  }

  function membersOf(lane) {
    const count = `${lane.size} ${lane.size === 1 ? "member" : "members"}`;
    return lane.label.endsWith("]") ? count : `${count}: ${short(bare(lane.members), 40)}`;
  }

  function laneCard(lane, open) {
    const card = make("details", { class: "lane card", "data-label": lane.label });
    const what = lane.transfers ? "sends and receives in " : "";
    const summary = make("summary", null, make("h3", { title: lane.label }, `${what}${short(lane.label, 70)}`), make("span", { class: "soft", title: lane.members }, membersOf(lane)));
    if (lane.importance === "blamed") summary.append(make("span", { class: "tag blamed" }, "◆ stuck here"));
    else if (lane.importance === "touched" || lane.importance === "pending") summary.append(make("span", { class: "tag wait" }, "ranks wait here"));
    card.append(summary);
    const fill = () => {
      if (card.open && card.children.length === 1) card.append(laneTable(lane));
    };
    card.addEventListener("toggle", fill);
    card.open = open;
    fill();
    return card;
  }

  const TITLES = {
    blamed: "Where it is stuck",
    touched: "Other groups in which a blamed rank holds others up",
    pending: "Other groups in which ranks wait",
    idle: "Groups in which nobody waits",
  };

  function drawLanes() {
    if (!data.lanes.length) return null;
    const part = make("section", { class: "part", id: "groups" }, make("h2", null, "Operations of each group"));
    part.append(make("p", null, "A row for ranks that look alike, a column for each operation. The thick line is the frontier: what lies to its left is finished. Select a cell for its call and stack, a rank for its process. Arrow keys move, Enter selects, Enter again goes into the details, Esc closes them."));
    const legend = make("div", { class: "legend" });
    for (const mark of "dwqrgeun") {
      if (data.lanes.some((lane) => lane.rows.some((row) => row.marks && row.marks.includes(mark)))) {
        legend.append(make("span", null, make("span", { class: `cell ${mark}` }, MARKS[mark][0]), MARKS[mark][1]));
      }
    }
    part.append(legend);
    for (const importance of Object.keys(TITLES)) {
      const chosen = data.lanes.filter((lane) => lane.importance === importance);
      if (!chosen.length) continue;
      const first = part.querySelector(".kind") === null;
      const title = first ? TITLES[importance].replace("Other groups", "Groups") : TITLES[importance];
      part.append(make("h3", { class: "kind" }, `${title} (${chosen.length})`));
      const kinds = byKind(chosen);
      let open = importance === "idle" ? (data.blamed.length || data.waits.length ? 0 : 2) : LANES;
      for (const lanes of kinds.values()) {
        const box = make("div");
        part.append(box);
        addAll(lanes, 3, `groups of this kind (${short(lanes[0].kind, 40)})`, (lane) => box.append(laneCard(lane, open-- > 0)), (button) => box.append(button));
      }
    }
    return part;
  }
  function byKind(lanes) {
    const kinds = new Map();
    for (const lane of lanes) {
      if (!kinds.has(lane.kind)) kinds.set(lane.kind, []);
      kinds.get(lane.kind).push(lane);
    }
    return kinds;
  }

  // The other parts.

  function drawWaits() {
    if (!data.waits.length) return null;
    const list = make("ul", { class: "waits" });
    const part = make("section", { class: "part", id: "waits" }, make("h2", null, "Who waits for whom"), list);
    addAll(data.waits, 10, "lines", (wait) => {
      const where = make("span", null, `in ${wait.operation} of ${short(wait.group, 60)}`);
      list.append(make("li", { title: wait.group },
        make("span", { class: "node", title: wait.ranks }, short(wait.ranks, 48)),
        make("span", { class: "arrow" }, where, make("i")),
        wait.each_other ? make("span", { class: "node" }, "each other") : null,
        wait.blamed ? make("span", { class: "node blamed", title: wait.blamed }, `◆ ${short(wait.blamed, 60)}`) : null,
        wait.others ? make("span", { class: "node", title: wait.others }, short(wait.others, 40)) : null));
    }, (button) => part.append(button));
    return part;
  }

  function table(id, title, heads, rows, draw) {
    if (!rows.length) return null;
    const body = make("tbody");
    const part = make("section", { class: "part", id }, make("h2", null, title));
    const card = make("div", { class: "card scroll" }, make("table", { class: "plain" }, make("thead", null, make("tr", null, ...heads.map((head) => make("th", { scope: "col" }, head)))), body));
    part.append(card);
    addAll(rows, 30, "rows", (row) => body.append(draw(row)), (button) => card.append(button));
    return part;
  }

  const drawProcesses = () => table("processes", "Processes", ["ranks", "state", "committed", "dump", "main thread"], data.processes, (process) => {
    const guilty = data.blamed.some((rank) => has(process.ranks, rank));
    let link = "no stack";
    if (process.stack >= 0) {
      const own = data.stacks[process.stack].map((index) => data.frames[index]);
      const [name, file, line] = own.find((frame) => !frame[3]) || own[0];
      link = make("button", { class: "link mono", type: "button", onclick: () => openDetail(link, ranksTitle(process.ranks), processFacts(process), make("h4", null, "Main thread, innermost first"), stackList(process.stack)) }, `${file.split("/").pop()}:${line} ${name}`);
    }
    const state = [process.life, process.why, process.gil ? "holds the interpreter lock" : ""].filter(Boolean).join(", ");
    return make("tr", { class: guilty ? "blamed" : "" },
      make("th", { scope: "row" }, `${guilty ? "◆ " : ""}${short(process.ranks, 60)}`), make("td", null, state || "not known"),
      make("td", null, process.step === null ? "" : `step ${process.step}`),
      make("td", null, process.no_dump ? `missing: ${process.no_dump}` : "there"), make("td", null, link));
  });
  const drawMissing = () => table("missing", "Not there", ["what", "of", "why"], data.missing, (one) =>
    make("tr", null, make("th", { scope: "row" }, one.kind), make("td", { title: one.ranks }, short(one.ranks, 80)), make("td", null, one.reason)));
  const drawFindings = () => table("files", "About the files", ["", "file", "what"], data.findings, (one) =>
    make("tr", null, make("th", { scope: "row" }, one.severity), make("td", { class: "mono" }, one.path), make("td", null, one.text)));

  const parts = [drawWaits(), drawLanes(), drawProcesses(), drawMissing(), drawFindings()];
  document.getElementById("drawn").append(...parts.filter(Boolean));
})();
