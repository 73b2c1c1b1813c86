// Drawn above the map: the selected image with its neighbors, the image under the pointer, and its card.

import { clamp } from "./map_camera.js";
import { broken } from "./map_panel.js";

const LEAST = 34; // minimum side of the selected image and its neighbors in CSS pixels
const CARD = 144; // side of the image on the card
const SIGNS = {
  right: [[-0.45, 0.02, -0.1, 0.38, 0.48, -0.35]], // a check mark, as lines in a unit circle
  wrong: [[-0.38, -0.38, 0.38, 0.38], [-0.38, 0.38, 0.38, -0.38]], // a cross
  rest: [[-0.4, 0, 0.4, 0]], // a dash
};

export class Chosen {
  constructor(atlas) {
    Object.assign(this, { atlas, card: atlas.find(".card") });
  }

  // Return the side of raised images in CSS pixels.
  side() {
    const { scene, camera } = this.atlas;
    return Math.max(scene.side(camera.zoom * scene.ratio) / scene.ratio, LEAST);
  }

  // Return the raised image at a point of the canvas, or null.
  hit(px, py) {
    const { image, view } = this.atlas;
    if (image === null) return null;
    const half = this.side() / 2;
    for (const i of [image, ...view.neighborsOf(image)]) {
      const [x, y] = this.atlas.place(i);
      if (Math.max(Math.abs(px - x), Math.abs(py - y)) <= (i === image ? 1.3 * half : half)) return i;
    }
    return null;
  }

  paint() {
    const { image, over, view, scene } = this.atlas;
    const { css } = scene;
    const side = this.side() * scene.ratio;
    if (image !== null) {
      const neighbors = [...view.neighborsOf(image)].reverse(); // the nearest on top
      const kinds = new Map(this.atlas.kindsOf(image).map((kind, place) => [view.neighborsOf(image)[place], kind]));
      const kind = (j) => kinds.get(j);
      for (const j of neighbors) {
        this.line(image, j, css.ground, 5, kind(j));
        this.line(image, j, css[kind(j)], 2, kind(j));
      }
      for (const j of neighbors) this.raise(j, side, css[kind(j)], SIGNS[kind(j)]);
      this.raise(image, 1.3 * side, css.ink);
    }
    if (over !== null && over !== image) this.raise(over, 1.1 * side, css.accent);
    this.showCard();
  }

  line(from, to, color, width, kind) {
    const { context, scene } = this.atlas;
    const ends = [from, to].map((i) => this.atlas.place(i).map((value) => value * scene.ratio));
    Object.assign(context, { strokeStyle: color, lineWidth: width * scene.ratio });
    context.setLineDash(kind === "right" ? [] : [7 * scene.ratio, 5 * scene.ratio]);
    context.beginPath();
    for (const [x, y] of ends) context.lineTo(x, y);
    context.stroke();
    context.setLineDash([]);
  }

  raise(i, side, color, sign = null) {
    const { context, scene, sheets } = this.atlas;
    const { ratio } = scene;
    const [x, y] = this.atlas.place(i).map((value) => Math.round(value * ratio - side / 2));
    for (const [fill, edge] of [[scene.css.ground, 5 * ratio], [color, 3 * ratio]]) {
      context.fillStyle = fill;
      context.fillRect(x - edge, y - edge, side + 2 * edge, side + 2 * edge);
    }
    context.imageSmoothingEnabled = true;
    const bitmap = sheets.peek(i);
    if (bitmap) sheets.draw(context, bitmap, i, x, y, side);
    if (!sign) return;
    const radius = 7 * ratio;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fill();
    Object.assign(context, { strokeStyle: scene.css.ground, lineWidth: 2 * ratio });
    context.beginPath();
    for (const [dx, dy, ...rest] of sign) {
      context.moveTo(x + dx * radius, y + dy * radius);
      for (let c = 0; c < rest.length; c += 2) context.lineTo(x + rest[c] * radius, y + rest[c + 1] * radius);
    }
    context.stroke();
  }

  // Show the image under the pointer, enlarged, with its class and caption.
  showCard() {
    const { atlas, card } = this;
    const { over: i, camera } = atlas;
    const [x, y] = i === null ? [-1, -1] : atlas.place(i);
    card.hidden = atlas.morph !== null || x < 0 || y < 0 || x > camera.width || y > camera.height;
    if (card.hidden) return;
    if (card.dataset.image !== String(i)) {
      card.dataset.image = i;
      atlas.sheets.show(card.querySelector("canvas"), i, CARD);
      card.querySelector(".class").replaceChildren(...broken(atlas.className(i)));
      card.querySelector(".caption").replaceChildren(...broken(atlas.caption(i)));
    }
    const [width, height] = [card.offsetWidth, card.offsetHeight];
    const gap = 18 + this.side() / 2;
    const beside = x + gap + width <= camera.width ? x + gap : x - gap - width;
    const left = clamp(beside, 4, Math.max(4, camera.width - width - 4));
    const top = clamp(y - height / 2, 4, Math.max(4, camera.height - height - 4));
    card.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }
}
