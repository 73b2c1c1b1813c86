// Class names on the map, each at the largest cluster of its images, as many as fit.

import { FILL, PLAIN } from "./map_picture.js";

const GATHERED = 0.4; // minimum share of a class in one place for its name to be shown there
const NAMES = 400; // maximum on the whole map
const LETTERS = 26;

export class Names {
  constructor(atlas) {
    Object.assign(this, { atlas, pictures: new Map(), widths: new Map(), placed: [], scale: 0, spots: null });
    this.ruler = document.createElement("canvas").getContext("2d");
  }

  // Clear the cache after a change of positions, colors or screen.
  forget() {
    this.pictures.clear();
    this.widths.clear();
    this.scale = 0;
    this.spots = null;
  }

  // Return whether the names of this part of the map must be placed.
  isDue(left, top, scale) {
    return this.scale !== scale;
  }

  // Return the densest spot of each class, { number, x, y, count }, largest first.
  gather() {
    const { labels, sizes, n, view, scene } = this.atlas;
    const { positions } = view;
    const members = Array.from(sizes, () => []);
    for (let i = 0; i < n; i++) if (scene.shown[i] === PLAIN) members[labels[i]].push(i);
    const spots = [];
    members.forEach((images, number) => {
      const some = images.filter((_, at) => at % Math.ceil(images.length / 400) === 0);
      const reach = 0.9 * FILL * Math.sqrt(images.length / n);
      const far = (i, j) => Math.hypot(positions[2 * i] - positions[2 * j], positions[2 * i + 1] - positions[2 * j + 1]);
      let best = [];
      for (let at = 0; at < some.length; at += Math.ceil(some.length / 48)) {
        const found = some.filter((j) => far(some[at], j) < reach);
        if (found.length > best.length) best = found;
      }
      if (best.length < 3 || best.length < GATHERED * some.length) return;
      const mean = (c) => best.reduce((sum, j) => sum + positions[2 * j + c], 0) / best.length;
      spots.push({ number, x: mean(0), y: mean(1), count: (best.length / some.length) * images.length });
    });
    return spots.sort((a, b) => b.count - a.count);
  }

  // Choose the names to show at a scale: none overlap, and none is much wider than the images of its class.
  place(scale) {
    this.spots ??= this.gather();
    this.scale = scale;
    this.placed = [];
    const { ratio } = this.atlas.scene;
    const side = (FILL * scale) / Math.sqrt(this.atlas.n);
    if (side > 44 * ratio || this.atlas.sizes.length < 2) return;
    const height = 18 * ratio;
    for (const { number, x, y, count } of this.spots) {
      const wide = Math.sqrt(count) * side;
      if (this.placed.length >= NAMES || wide < 18 * ratio) break;
      const width = this.width(number);
      if (wide < 0.25 * width) continue;
      const [left, top] = [x * scale - width / 2, y * scale - height / 2];
      const apart = (other) =>
        left > other.left + other.width || other.left > left + width || Math.abs(top - other.top) > height;
      if (this.placed.every(apart)) this.placed.push({ number, x, y, left, top, width });
    }
  }

  font() {
    return `600 ${11.5 * this.atlas.scene.ratio}px system-ui, sans-serif`;
  }

  text(number) {
    const letters = [...this.atlas.classes[number]];
    return letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}…` : letters.join("");
  }

  width(number) {
    if (!this.widths.has(number)) {
      this.ruler.font = this.font();
      this.widths.set(number, Math.ceil(this.ruler.measureText(this.text(number)).width + 10 * this.atlas.scene.ratio));
    }
    return this.widths.get(number);
  }

  // Return the name on a cached canvas, since drawing text in every frame would be slow.
  picture(number) {
    if (this.pictures.has(number)) return this.pictures.get(number);
    const { css, ratio } = this.atlas.scene;
    const canvas = document.createElement("canvas");
    const context = canvas.getContext("2d");
    canvas.width = this.width(number);
    canvas.height = 18 * ratio;
    Object.assign(context, { font: this.font(), textAlign: "center", textBaseline: "middle", lineJoin: "round" });
    Object.assign(context, { lineWidth: 3.5 * ratio, strokeStyle: css.ground, fillStyle: css.ink, globalAlpha: 0.85 });
    context.strokeText(this.text(number), canvas.width / 2, canvas.height / 2);
    context.globalAlpha = 1;
    context.fillText(this.text(number), canvas.width / 2, canvas.height / 2);
    this.pictures.set(number, canvas);
    return canvas;
  }

  paint(context, left, top, scale) {
    const { width: right, height: bottom } = context.canvas;
    const height = 18 * this.atlas.scene.ratio;
    for (const { number, x, y, width } of this.placed) {
      const [px, py] = [Math.round(x * scale - left - width / 2), Math.round(y * scale - top - height / 2)];
      if (px < right && py < bottom && px + width > 0 && py + height > 0) context.drawImage(this.picture(number), px, py);
    }
  }
}
