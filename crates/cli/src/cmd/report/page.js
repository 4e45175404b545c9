"use strict";
// Draws the tree map and the map of the image from the object in the element "data". Names only ever become text nodes.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = new Intl.NumberFormat("en");

  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (bytes >= 1024 && unit + 1 < units.length) { bytes /= 1024; unit += 1; }
    return unit === 0 ? `${bytes} B` : `${bytes.toFixed(1)} ${units[unit]}`;
  }
  const percent = (part, whole) => (whole > 0 ? `${((part * 100) / whole).toFixed(1)} %` : "-");
  const of = (node, key) => node[key] || 0;

  function element(name, attributes, text) {
    const out = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) out.setAttribute(key, value);
    if (text !== undefined) out.textContent = text;
    return out;
  }

  // Tooltip

  const tip = byId("tip");
  function showTip(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
  }
  const hideTip = () => { tip.hidden = true; };

  // Colours

  function mix(from, to, share) {
    const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const [a, b] = [parts(from), parts(to)];
    return a.map((v, i) => Math.round(v + (b[i] - v) * share));
  }
  const rgb = (c) => `rgb(${c.join(",")})`;
  // Black or white, whichever has the higher contrast by WCAG: at least 4.5 on any colour.
  function textOn(colour) {
    const linear = colour.map((v) => (v <= 10 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    return luminance > 0.179 ? "#000000" : "#ffffff";
  }

  const kinds = [
    ["programs and libraries", "#0072b2", /^(so|ko|a|o|exe|dll|bin|elf|wasm|rlib)$|^[0-9]+$/],
    ["archives", "#cc79a7", /^(gz|xz|zst|bz2|zip|jar|tar|deb|rpm|whl|lz4|7z|tgz)$/],
    ["source and scripts", "#009e73", /^(c|h|cc|cpp|hpp|rs|go|py|pyc|js|ts|pl|pm|sh|rb|java|lua|el|vim|s|php)$/],
    ["text and data", "#e69f00", /^(txt|md|html|htm|css|json|xml|yaml|yml|toml|conf|cfg|ini|csv|sql|po|mo|rst|tex|log|list|db|dat|idx|hwdb)$/],
    ["images, sound, fonts", "#56b4e9", /^(png|jpg|jpeg|gif|svg|ico|webp|ttf|otf|woff2?|pcf|mp3|ogg|mp4|webm|wav|pdf)$/],
    ["others", "#7b8494", /^/],
  ];
  function kindOf(node) {
    const name = node.name || "";
    const dot = name.lastIndexOf(".");
    if (/\.so(\.|$)/.test(name)) return kinds[0];
    const extension = dot > 0 ? name.slice(dot + 1).toLowerCase() : "";
    return extension === "" ? kinds[5] : kinds.find((kind) => kind[2].test(extension));
  }
  const hex = (text) => mix(text, text, 0);
  // Lightness rises with the value, and blue to yellow is seen by colour-blind readers. The kinds are colours of Okabe and Ito.
  const colours = {
    ratio(node) {
      const ratio = Math.min(1, of(node, "bytes") ? of(node, "stored_bytes") / of(node, "bytes") : 1);
      return ratio < 0.5 ? mix("#14407a", "#8a8678", ratio * 2) : mix("#8a8678", "#fde737", ratio * 2 - 1);
    },
    kind(node) { return hex(node.others ? "#a9b0bd" : kindOf(node)[1]); },
    shared(node) { return mix(css("--cold"), "#18a08a", of(node, "bytes") ? Math.min(1, of(node, "shared_bytes") / of(node, "bytes")) : 0); },
    profile(node) { return mix(css("--cold"), "#e5484d", of(node, "bytes") ? Math.min(1, of(node, "profile_bytes") / of(node, "bytes")) : 0); },
    changed(node) { return mix(css("--cold"), "#e08a1e", of(node, "changed_bytes") > 0 ? 1 : 0); },
  };
  const legends = {
    ratio: [["#14407a", "compressed well"], ["#8a8678", "to half its size"], ["#fde737", "not compressed"]],
    kind: kinds.map((kind) => [kind[1], kind[0]]),
    shared: [["--cold", "in no other file"], ["#18a08a", "data shared with other files"]],
    profile: [["--cold", "not read"], ["#e5484d", "read"]],
    changed: [["--cold", "as in the older image"], ["#e08a1e", "new or changed"]],
  };
  function legend(target, entries) {
    target.replaceChildren(...entries.map(([colour, name]) => {
      const item = element("span");
      const key = element("b", { class: "key" });
      key.style.background = colour.startsWith("--") ? `var(${colour})` : colour;
      item.append(key, name);
      return item;
    }));
  }

  // Tree map

  // Squarified layout: rows of rectangles whose sides are as equal as possible.
  function squarify(items, x, y, width, height, place) {
    let rest = items.filter((item) => item.weight > 0);
    let total = rest.reduce((sum, item) => sum + item.weight, 0);
    while (rest.length > 0 && width >= 1 && height >= 1) {
      const side = Math.min(width, height);
      const scale = (width * height) / total;
      let [count, sum, worst] = [0, 0, Infinity];
      while (count < rest.length) {
        const next = sum + rest[count].weight;
        const depth = (next * scale) / side;
        const least = rest[count].weight;
        const ratio = Math.max(
          (rest[0].weight * scale) / (depth * depth),
          (depth * depth) / (least * scale),
        );
        if (ratio > worst) break;
        [worst, sum, count] = [ratio, next, count + 1];
      }
      const depth = Math.min((sum * scale) / side, width >= height ? width : height);
      let at = 0;
      for (const item of rest.slice(0, count)) {
        const length = (item.weight / sum) * side;
        if (width >= height) place(item.node, x, y + at, depth, length);
        else place(item.node, x + at, y, length, depth);
        at += length;
      }
      if (width >= height) { x += depth; width -= depth; } else { y += depth; height -= depth; }
      total -= sum;
      rest = rest.slice(count);
    }
  }

  const pathOf = (trail) => "/" + trail.slice(1).map((node) => node.name).join("/");
  const nameOf = (node) => (node.others ? `${number.format(node.others)} smaller entries` : node.name || "/");
  function describe(node, path) {
    const lines = [path, `${size(of(node, "stored_bytes"))} in the image, ${size(of(node, "bytes"))} of content (${percent(of(node, "stored_bytes"), of(node, "bytes"))})`];
    if (node.children || node.others) lines.push(`${number.format(of(node, "inodes"))} inodes`);
    for (const [key, name] of [["shared_bytes", "shared"], ["fragment_bytes", "in fragments"], ["hole_bytes", "in holes"], ["profile_bytes", "read by the profile"], ["changed_bytes", "new or changed"]]) {
      if (of(node, key) > 0) lines.push(`${size(node[key])} ${name}`);
    }
    return lines.join("\n");
  }

  const map = byId("tree-map");
  let trail = [data.tree];

  function drawTree() {
    const sizeKey = byId("tree-size").value;
    const colourKey = byId("tree-colour").value;
    legend(byId("tree-legend"), legends[colourKey]);
    map.replaceChildren();
    const add = (node, at, x, y, width, height, depth) => {
      if (width < 2 || height < 2) return;
      const here = at.concat([node]);
      const label = describe(node, node.others ? `${pathOf(at)}: ${nameOf(node)}` : pathOf(here));
      const box = element("div", { "aria-label": label.replaceAll("\n", ", ") });
      box.style.cssText = `left:${x}px;top:${y}px;width:${width}px;height:${height}px`;
      const inner = node.children && depth < 6 && width > 36 && height > 34;
      if (width > 26 && height > 14) box.textContent = nameOf(node);
      if (node.children) {
        box.className = "dir";
        box.tabIndex = depth < 2 ? 0 : -1;
        box.setAttribute("role", "button");
        box.addEventListener("click", (event) => { event.stopPropagation(); trail = here; redrawTree(true); });
        box.addEventListener("keydown", (event) => {
          if (event.key === "Enter" || event.key === " ") { event.preventDefault(); trail = here; redrawTree(true); }
        });
      } else {
        box.setAttribute("role", "img");
      }
      if (!inner) {
        const colour = colours[colourKey](node);
        box.style.background = rgb(colour);
        box.style.color = textOn(colour);
      }
      box.addEventListener("mousemove", (event) => { event.stopPropagation(); showTip(label, event.clientX, event.clientY); });
      box.addEventListener("mouseleave", hideTip);
      map.append(box);
      if (inner) {
        const items = node.children.map((child) => ({ node: child, weight: of(child, sizeKey) })).sort((a, b) => b.weight - a.weight);
        squarify(items, x + 2, y + 16, width - 4, height - 18, (child, ...place) => add(child, here, ...place, depth + 1));
      }
    };
    const root = trail[trail.length - 1];
    const items = (root.children || []).map((child) => ({ node: child, weight: of(child, sizeKey) })).sort((a, b) => b.weight - a.weight);
    squarify(items, 0, 0, map.clientWidth, map.clientHeight, (child, ...place) => add(child, trail, ...place, 0));
  }

  function drawPath() {
    const parts = [];
    trail.forEach((node, i) => {
      const button = element("button", { type: "button" }, i === 0 ? "/" : node.name);
      button.disabled = i + 1 === trail.length;
      button.addEventListener("click", () => { trail = trail.slice(0, i + 1); redrawTree(true); });
      if (i > 1) parts.push(" / ");
      if (i === 1) parts.push(" ");
      parts.push(button);
    });
    byId("tree-path").replaceChildren(...parts);
  }

  function drawTable() {
    const root = trail[trail.length - 1];
    const table = element("table");
    const heading = element("tr");
    for (const [i, name] of ["name", "inodes", "content", "stored", "ratio"].entries()) heading.append(element("th", { scope: "col", class: i ? "num" : "" }, name));
    const body = element("tbody");
    for (const node of root.children || []) {
      const row = element("tr");
      row.append(element("td", { class: "name" }, nameOf(node) + (node.children ? "/" : "")));
      for (const cell of [number.format(of(node, "inodes")), size(of(node, "bytes")), size(of(node, "stored_bytes")), percent(of(node, "stored_bytes"), of(node, "bytes"))]) row.append(element("td", { class: "num" }, cell));
      body.append(row);
    }
    const head = element("thead");
    head.append(heading);
    table.append(head, body);
    byId("tree-table").replaceChildren(table);
  }

  function redrawTree(focus) {
    hideTip();
    drawPath();
    drawTree();
    drawTable();
    if (focus) {
      const last = byId("tree-path").querySelector("button:not(:disabled)") || map;
      last.focus({ preventScroll: true });
    }
  }

  // Map of the image

  function cellText(space, i) {
    const start = i * space.cell_bytes;
    const end = Math.min(start + space.cell_bytes, space.bytes);
    const cell = space.cells[i];
    const pairs = typeof cell === "number" ? [[cell, end - start]] : cell.reduce((out, v, at) => (at % 2 ? (out[out.length - 1].push(v), out) : (out.push([v]), out)), []);
    const lines = [`bytes ${number.format(start)} to ${number.format(end)}`];
    for (const [purpose, bytes] of pairs.sort((a, b) => b[1] - a[1])) lines.push(`${space.purposes[purpose]}: ${size(bytes)}`);
    return { lines, main: pairs.length ? pairs[0][0] : 8, length: end - start };
  }

  const purposes = data.maps[0].purposes;
  function drawMaps() {
    const target = byId("maps");
    target.replaceChildren();
    const ink = purposes.map((_, i) => css(`--p${i}`));
    const hot = css("--hot");
    const used = new Set();
    data.maps.forEach((space, n) => {
      const read = n === 0 && data.profile ? data.profile.cells : null;
      target.append(element("p", {}, `${n === 0 ? "image" : `device ${space.device}`}: ${number.format(space.cells.length)} cells of ${size(space.cell_bytes)}`));
      const width = target.clientWidth;
      const columns = Math.max(16, Math.min(128, Math.floor(width / 9), Math.ceil(Math.sqrt(space.cells.length * 4))));
      const step = width / columns;
      const height = Math.min(step, 16);
      const rows = Math.ceil(space.cells.length / columns);
      const canvas = element("canvas", { role: "img", "aria-label": "Map of the image. The table of space has the same numbers by purpose." });
      const ratio = window.devicePixelRatio || 1;
      canvas.width = width * ratio;
      canvas.height = rows * height * ratio;
      canvas.style.height = `${rows * height}px`;
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      const gap = step > 6 ? 1 : 0;
      space.cells.forEach((_, i) => {
        const { main } = cellText(space, i);
        used.add(main);
        const [x, y] = [(i % columns) * step, Math.floor(i / columns) * height];
        pen.globalAlpha = read && !(read[i] > 0) ? 0.28 : 1;
        pen.fillStyle = ink[main];
        pen.fillRect(x, y, step - gap, height - gap);
        pen.globalAlpha = 1;
        if (read && read[i] > 0) {
          pen.fillStyle = hot;
          const part = Math.max(0.25, Math.min(1, read[i] / space.cell_bytes));
          pen.fillRect(x, y + (height - gap) * (1 - part * 0.5), step - gap, (height - gap) * part * 0.5);
        }
      });
      canvas.addEventListener("mousemove", (event) => {
        const box = canvas.getBoundingClientRect();
        const i = Math.floor((event.clientY - box.top) / height) * columns + Math.floor((event.clientX - box.left) / step);
        if (i < 0 || i >= space.cells.length) return hideTip();
        const { lines, length } = cellText(space, i);
        if (read) lines.push(`read by the profile: ${percent(read[i], length)}`);
        showTip(lines.join("\n"), event.clientX, event.clientY);
      });
      canvas.addEventListener("mouseleave", hideTip);
      target.append(canvas);
    });
    const entries = purposes.map((name, i) => [`--p${i}`, name, i]).filter((entry) => used.has(entry[2]));
    if (data.profile) entries.push(["--hot", "read by the profile"]);
    legend(byId("map-legend"), entries);
  }

  function draw() {
    redrawTree(false);
    drawMaps();
  }
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || trail.length < 2 || event.target.closest("select")) return;
    trail = trail.slice(0, -1);
    redrawTree(true);
  });
  document.querySelector(".controls").hidden = false;
  map.classList.add("drawn");
  if (data.comparison) byId("tree-colour").value = "changed";
  else if (data.profile) byId("tree-colour").value = "profile";
  for (const id of ["tree-size", "tree-colour"]) byId(id).addEventListener("change", () => redrawTree(false));
  let pending = 0;
  addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(draw, 100); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
