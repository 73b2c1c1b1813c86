// Drawing of the map. It consists of square tiles, each drawn once per scale: dots if the images would be too small, otherwise
// thumbnails. A frame copies only about a dozen tiles, whatever the number of images.

export const TILE = 512; // side in device pixels
export const BUDGET = 8; // milliseconds of drawing per frame
export const SMALLEST = 13; // CSS pixels below which thumbnails become dots
const LARGEST = 72;
export const FILL = 0.8; // side of a thumbnail relative to the mean distance between images
export const HIDDEN = 0, FAINT = 1, PLAIN = 2; // visibility of an image

export function rgb(hex) {
  const number = parseInt(hex.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

export function packed([red, green, blue]) {
  return (255 << 24) | (blue << 16) | (green << 8) | red;
}

// Class colors: hues by the golden angle, so that consecutive classes differ; OKLCH, for even lightness and chroma.
export function classColor(number, dark) {
  return oklch((dark ? 0.74 : 0.62) + [0, 0.08, -0.08][number % 3], 0.14, number * 2.399963);
}

export function oklch(light, chroma, hue) {
  const [a, b] = [chroma * Math.cos(hue), chroma * Math.sin(hue)];
  const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((linear) => {
    const clipped = Math.min(1, Math.max(0, linear));
    return Math.round(255 * (clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055));
  });
}

// Return the pixels of a dot or a cross as a flat list of x, y and coverage (0 to 256).
function stampOf(diameter, cross) {
  const radius = diameter / 2;
  const reach = Math.ceil(radius);
  const stamp = [];
  for (let y = -reach; y <= reach; y++) {
    for (let x = -reach; x <= reach; x++) {
      const stroke = Math.min(Math.abs(x - y), Math.abs(x + y)) * Math.SQRT1_2 - Math.max(0.7, radius * 0.28);
      const away = Math.hypot(x, y) - radius * (cross ? 1.15 : 1);
      const cover = Math.min(1, 0.5 - (cross ? Math.max(away, stroke) : away));
      if (cover > 0.04) stamp.push(x, y, Math.round(256 * cover));
    }
  }
  return Int16Array.from(stamp);
}

// Pixel buffer for dots. Tens of thousands of dots take a few milliseconds, much less than canvas paths.
class Stamps {
  resize(width, height) {
    if (this.image?.width === width && this.image?.height === height) return;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  put(x, y, stamp, color, strength) {
    const pixels = this.pixels;
    const width = this.image.width;
    const height = this.image.height;
    for (let s = 0; s < stamp.length; s += 3) {
      const px = x + stamp[s];
      const py = y + stamp[s + 1];
      if (px < 0 || py < 0 || px >= width || py >= height) continue;
      const at = py * width + px;
      const share = (stamp[s + 2] * strength) >> 8;
      if (share >= 256) {
        pixels[at] = color;
        continue;
      }
      const old = pixels[at]; // red and blue together, then green; overflow lands in masked bits
      const even = (old & 0xff00ff) + ((((color & 0xff00ff) - (old & 0xff00ff)) * share) >> 8);
      const green = (old & 0x00ff00) + ((((color & 0x00ff00) - (old & 0x00ff00)) * share) >> 8);
      pixels[at] = 0xff000000 | (even & 0xff00ff) | (green & 0x00ff00);
    }
  }
}

// State of the drawing: view, visible images and colors. A change invalidates every tile.
export class Scene {
  constructor(atlas) {
    Object.assign(this, { atlas, stamps: new Stamps(), stampCache: new Map(), smallest: SMALLEST, largest: LARGEST, strict: true, photo: 0, dotted: FAINT });
    this.shown = new Uint8Array(atlas.n).fill(PLAIN);
    this.ratio = 1; // device pixels per CSS pixel
    this.least = 0; // minimum side of a thumbnail in CSS pixels, when few are plain
  }

  recolor(style, mode, dark) {
    const value = (name) => style.getPropertyValue(`--${name}`).trim();
    const color = (name) => rgb(value(name));
    this.css = {};
    for (const name of ["ground", "ink", "accent", "right", "wrong", "rest"]) this.css[name] = value(name);
    this.ground = packed(color("ground"));
    this.crosses = mode === "outcome";
    const palette = this.crosses ? [color("right"), color("wrong"), color("faint")] : this.colors(dark, color("faint"));
    this.names = palette.map(([red, green, blue]) => `rgb(${red} ${green} ${blue})`);
    this.palette = palette.map(packed);
    this.kinds = this.kindsOf();
  }

  // Return the colors of the palette, unless it is that of outcomes.
  colors(dark) {
    return this.atlas.classes.map((_, number) => classColor(number, dark));
  }

  // Return the index of each image into the palette.
  kindsOf() {
    const { labels, view } = this.atlas;
    if (!this.crosses) return labels;
    return Uint32Array.from(view.ranks, (rank) => (rank === 1 ? 0 : rank > 1 ? 1 : 2));
  }

  // Return a function that tells whether a thumbnail of an image is shown.
  pictured(scale, big) {
    return big ? (i) => this.shown[i] === PLAIN : () => false;
  }

  // Return the side of a thumbnail in device pixels; the scale is the side of the whole map in device pixels.
  side(scale) {
    return Math.max(this.least * this.ratio, this.room(scale));
  }

  room(scale) {
    return Math.min(this.largest * this.ratio, (FILL * scale) / Math.sqrt(this.atlas.n));
  }

  thumbnails(scale) {
    return this.side(scale) >= this.smallest * this.ratio;
  }

  diameter(scale) {
    return Math.min(9 * this.ratio, Math.max(2.4 * this.ratio, 0.72 * this.room(scale)));
  }

  stamp(diameter, cross) {
    const key = Math.round(4 * diameter) * 2 + (cross ? 1 : 0);
    if (!this.stampCache.has(key)) this.stampCache.set(key, stampOf(diameter, cross));
    return this.stampCache.get(key);
  }

  // Draw dots of the images, faint ones first, on a canvas whose corner is at (left, top) of the scaled map.
  paintDots(context, width, height, images, positions, left, top, scale, only) {
    const { stamps, shown, kinds, palette } = this;
    const diameter = this.diameter(scale);
    const [dot, cross] = [this.stamp(diameter, false), this.crosses && diameter > 3 ? this.stamp(diameter, true) : null];
    stamps.resize(width, height);
    this.paintGround(stamps, left, top, scale);
    const reach = diameter + 1;
    for (const kind of only ? [only] : [FAINT, PLAIN]) {
      for (let at = 0; at < images.length; at++) {
        const i = images[at];
        if (shown[i] !== kind) continue;
        const x = positions[2 * i] * scale - left;
        const y = positions[2 * i + 1] * scale - top;
        if (x < -reach || y < -reach || x > width + reach || y > height + reach) continue;
        const stamp = cross && kinds[i] === 1 ? cross : dot;
        stamps.put(Math.round(x), Math.round(y), stamp, palette[kinds[i]], kind === FAINT ? 44 : 256);
      }
    }
    context.putImageData(stamps.image, 0, 0);
  }

  paintGround(stamps) {
    stamps.pixels.fill(this.ground);
  }

  frame(context, i, x, y, side) {
    context.fillStyle = this.names[this.kinds[i]];
    context.fillRect(x, y, side, side);
    if (this.crosses && this.kinds[i] === 1) {
      const corner = Math.round(side * 0.3);
      context.fillRect(x - corner * 0.25, y - corner * 0.25, corner, corner);
    }
  }

  paintThumbnail(context, bitmap, i, x, y, side) {
    const edge = Math.max(1, Math.round(side * 0.045));
    this.frame(context, i, x, y, side);
    this.atlas.sheets.draw(context, bitmap, i, x + edge, y + edge, side - 2 * edge);
    if (this.crosses && this.kinds[i] === 1) this.cross(context, x, y, side);
  }

  cross(context, x, y, side) {
    const size = Math.round(Math.max(6 * this.ratio, side * 0.26));
    const [low, high] = [size * 0.28, size * 0.72];
    context.fillStyle = this.names[1];
    context.fillRect(x, y, size, size);
    context.strokeStyle = "#fff";
    context.lineWidth = Math.max(1, size * 0.14);
    context.beginPath();
    context.moveTo(x + low, y + low);
    context.lineTo(x + high, y + high);
    context.moveTo(x + high, y + low);
    context.lineTo(x + low, y + high);
    context.stroke();
  }
}

// Square of the map at one scale. Dots are drawn at once, thumbnails in the order of their sheets, so that few sheets are in
// memory at a time and the stacking order does not depend on loading.
class Tile {
  constructor(scene, column, row, scale, dots) {
    const { view, slots } = scene.atlas;
    this.canvas = document.createElement("canvas");
    this.canvas.width = this.canvas.height = TILE;
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.context.imageSmoothingQuality = "medium";
    Object.assign(this, { scene, left: column * TILE, top: row * TILE, scale, next: 0, order: [], later: [] });
    const big = !dots && scene.thumbnails(scale);
    this.side = Math.round(big ? scene.side(scale) : scene.photo * scene.ratio);
    this.apart = !big;
    const reach = Math.max(this.side * 0.75, scene.diameter(scale)) + 2;
    const [low, high] = [-reach / scale, (TILE + reach) / scale];
    const [x, y] = [this.left / scale, this.top / scale];
    const images = view.grid.within(x + low, y + low, x + high, y + high, scale, big);
    this.state = view.grid.state; // of images that are not all loaded yet
    scene.paintDots(this.context, TILE, TILE, images, view.positions, this.left, this.top, scale, big ? scene.dotted : 0);
    if (dots) return;
    this.order = images.filter(scene.pictured(scale, big)).sort((i, j) => slots[i] - slots[j]);
    for (const i of this.order) scene.frame(this.context, i, ...this.corner(i), this.side);
  }

  corner(i) {
    const { positions } = this.scene.atlas.view;
    const middle = this.side / 2;
    return [
      Math.round(positions[2 * i] * this.scale - this.left - middle),
      Math.round(positions[2 * i + 1] * this.scale - this.top - middle),
    ];
  }

  get done() {
    return this.next >= this.order.length && !this.later.length;
  }

  // Draw thumbnails until a sheet is missing or the time is up; returns true if the time is up.
  goOn(until) {
    const { scene, context, order, side } = this;
    for (; this.next < order.length; this.next++) {
      if (this.next % 32 === 31 && performance.now() > until) return true;
      const i = order[this.next];
      const bitmap = scene.atlas.sheets.peek(i, side, this.apart);
      if (bitmap === null && scene.strict) return false;
      if (bitmap === null) this.later.push(i);
      if (bitmap) scene.paintThumbnail(context, bitmap, i, ...this.corner(i), side);
    }
    if (this.later.length) Object.assign(this, { order: this.later, later: [], next: 0 });
    return false;
  }
}

// All tiles of one scale; with `dots`, they show dots even if thumbnails would fit.
export class Layer {
  constructor(scene, scale, dots = false) {
    Object.assign(this, { scene, scale, dots, tiles: new Map() });
  }

  // Return the columns and rows that a canvas with its corner at (left, top) shows, in device pixels of this layer.
  span(left, top, width, height) {
    const least = Math.floor((-0.04 * this.scale - LARGEST) / TILE);
    const most = Math.floor((1.04 * this.scale + LARGEST) / TILE);
    const clip = (value) => Math.min(most, Math.max(least, Math.floor(value / TILE)));
    return [clip(left), clip(left + width - 1), clip(top), clip(top + height - 1)];
  }

  // Draw missing tiles, center first, until the time is up. Returns whether all are done and whether to continue at once.
  paint(left, top, width, height, until) {
    const [first, last, upper, lower] = this.span(left, top, width, height);
    const places = [];
    for (let row = upper; row <= lower; row++) {
      for (let column = first; column <= last; column++) places.push([column, row]);
    }
    const far = ([column, row]) => Math.hypot((column + 0.5) * TILE - left - width / 2, (row + 0.5) * TILE - top - height / 2);
    places.sort((a, b) => far(a) - far(b));
    let [done, hurry] = [true, false];
    for (const [column, row] of places) {
      const key = `${column},${row}`;
      let tile = this.tiles.get(key);
      const stale = !tile || (tile.state && this.scene.atlas.view.grid.hasMore(tile.state));
      if (stale && performance.now() < until) tile = new Tile(this.scene, column, row, this.scale, this.dots);
      if (!tile) {
        done = false;
        hurry = true;
        continue;
      }
      this.tiles.delete(key);
      this.tiles.set(key, tile); // most recently used last
      if (!tile.done && tile.goOn(until)) hurry = true;
      done &&= tile.done && !tile.state;
    }
    for (const key of this.tiles.keys()) {
      if (this.tiles.size <= Math.max(40, 2 * places.length)) break;
      this.tiles.delete(key);
    }
    return [done, hurry];
  }

  covers(left, top, width, height) {
    const [first, last, upper, lower] = this.span(left, top, width, height);
    for (let row = upper; row <= lower; row++) {
      for (let column = first; column <= last; column++) if (!this.tiles.has(`${column},${row}`)) return false;
    }
    return true;
  }

  // Copy the tiles onto a canvas whose corner is at (left, top) of the map at any scale.
  copy(context, left, top, scale) {
    const zoom = scale / this.scale;
    const { width, height } = context.canvas;
    context.imageSmoothingEnabled = zoom !== 1;
    for (const tile of this.tiles.values()) {
      const x = Math.round(tile.left * zoom - left);
      const y = Math.round(tile.top * zoom - top);
      const right = Math.round((tile.left + TILE) * zoom - left);
      const bottom = Math.round((tile.top + TILE) * zoom - top);
      if (right > 0 && bottom > 0 && x < width && y < height) context.drawImage(tile.canvas, x, y, right - x, bottom - y);
    }
  }
}
