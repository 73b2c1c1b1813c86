// Data inside the page: arrays, positions and sheets of thumbnails. Nothing is fetched.

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };
const SHEET_BYTES = 192e6; // of decoded sheets to keep
const AT_ONCE = 3; // sheets decoded at the same time

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

export function arrayOf({ type, data }) {
  return new ARRAYS[type](bytesOf(data).buffer);
}

// Return the content of a report's map.
export function contentOf(root) {
  const read = (name) => JSON.parse(root.querySelector(`script.${name}`).textContent);
  const [{ classes, captions, views, ...packed }, about] = [read("data"), read("about")];
  const [labels, slots] = [arrayOf(packed.labels), arrayOf(packed.slots)];
  const sizes = new Uint32Array(classes.length);
  for (const label of labels) sizes[label] += 1;
  const sheets = new Sheets(root.querySelectorAll("script.sprites"), about, slots);
  return { n: labels.length, classes, captions, labels, sizes, slots, sheets, about, given: views, views: [] };
}

// Positions and neighbors of one run, decoded on first use.
export class View {
  constructor(given, labels) {
    this.name = given.name;
    this.positions = arrayOf(given.positions); // x, y of each image, in the unit square
    this.neighbors = arrayOf(given.neighbors);
    this.distances = arrayOf(given.distances);
    this.ranks = arrayOf(given.ranks);
    const n = labels.length;
    this.k = this.neighbors.length / n;
    this.failures = 0;
    this.queries = 0;
    for (const rank of this.ranks) {
      if (rank > 0) this.queries += 1;
      if (rank > 1) this.failures += 1;
    }
    this.grid = new Grid(this.positions);
  }

  neighborsOf(i) {
    return this.neighbors.subarray(i * this.k, (i + 1) * this.k);
  }

  distancesOf(i) {
    return this.distances.subarray(i * this.k, (i + 1) * this.k);
  }

  failed(i) {
    return this.ranks[i] > 1;
  }
}

// Grid index of the images, to find those inside a rectangle.
export class Grid {
  constructor(positions) {
    const n = positions.length / 2;
    const side = (this.side = Math.max(1, Math.ceil(Math.sqrt(n / 4))));
    const cell = new Uint32Array(n);
    const starts = (this.starts = new Uint32Array(side * side + 1));
    for (let i = 0; i < n; i++) {
      cell[i] = this.index(positions[2 * i + 1]) * side + this.index(positions[2 * i]);
      starts[cell[i] + 1] += 1;
    }
    for (let c = 0; c < side * side; c++) starts[c + 1] += starts[c];
    const next = starts.slice();
    this.images = new Uint32Array(n);
    for (let i = 0; i < n; i++) this.images[next[cell[i]]++] = i;
    this.positions = positions;
    this.found = new Uint32Array(n);
  }

  index(coordinate) {
    return Math.min(this.side - 1, Math.max(0, Math.floor(coordinate * this.side)));
  }

  // Return the images in the rectangle; the next call reuses the array.
  within(left, top, right, bottom) {
    const { positions, images, starts, side, found } = this;
    const [first, last] = [this.index(left), this.index(right)];
    let count = 0;
    for (let row = this.index(top); row <= this.index(bottom); row++) {
      const end = starts[row * side + last + 1];
      for (let at = starts[row * side + first]; at < end; at++) {
        const i = images[at];
        const x = positions[2 * i];
        const y = positions[2 * i + 1];
        if (x >= left && x <= right && y >= top && y <= bottom) found[count++] = i;
      }
    }
    return found.subarray(0, count);
  }
}

// Sheets of thumbnails: text until one of their images is in view, then a bitmap in an LRU cache.
export class Sheets {
  constructor(elements, { side, columns }, slots) {
    Object.assign(this, { elements, side, columns, slots });
    this.per = columns * columns;
    this.most = Math.max(8, Math.floor(SHEET_BYTES / (4 * (side * columns) ** 2)));
    this.sheets = new Map(); // number -> { promise, bitmap, failed }, least recently used first
    this.loading = 0;
    this.wanted = [];
    this.onLoad = () => {};
  }

  number(i) {
    return Math.floor(this.slots[i] / this.per);
  }

  // Return the bitmap with image i, null if it is not loaded yet, or false if it cannot be decoded.
  peek(i) {
    const number = this.number(i);
    const sheet = this.sheets.get(number);
    if (!sheet) {
      this.wanted.push(number);
      return null;
    }
    this.sheets.delete(number);
    this.sheets.set(number, sheet);
    return sheet.failed ? false : sheet.bitmap;
  }

  // Start to decode the sheets requested since the last call; older requests are dropped.
  loadWanted() {
    for (const number of this.wanted) {
      if (this.loading >= AT_ONCE) break;
      this.load(number);
    }
    this.wanted.length = 0;
  }

  load(number) {
    const known = this.sheets.get(number);
    if (known) {
      this.sheets.delete(number); // to the end, as most recently used
      this.sheets.set(number, known);
      return known.promise;
    }
    const sheet = { bitmap: null, failed: false };
    const blob = new Blob([bytesOf(this.elements[number].textContent)], { type: "image/webp" });
    this.loading += 1;
    sheet.promise = createImageBitmap(blob)
      .then((bitmap) => (sheet.bitmap = bitmap), () => void (sheet.failed = true))
      .finally(() => {
        this.loading -= 1;
        this.onLoad();
      });
    this.sheets.set(number, sheet);
    for (const [old, { bitmap }] of this.sheets) {
      if (this.sheets.size <= this.most) break;
      if (!bitmap) continue;
      bitmap.close();
      this.sheets.delete(old);
    }
    return sheet.promise;
  }

  draw(context, bitmap, i, x, y, width) {
    const place = this.slots[i] % this.per;
    const left = (place % this.columns) * this.side;
    const top = Math.floor(place / this.columns) * this.side;
    context.drawImage(bitmap, left, top, this.side, this.side, x, y, width, width);
  }

  // Draw image i on a separate canvas as soon as it is loaded.
  async show(canvas, i, width) {
    const pixels = Math.round(width * Math.min(2, devicePixelRatio || 1));
    canvas.width = canvas.height = pixels;
    canvas.dataset.image = i;
    let bitmap = await this.load(this.number(i));
    while (bitmap && this.sheets.get(this.number(i))?.bitmap !== bitmap) bitmap = await this.load(this.number(i)); // evicted
    if (!bitmap || canvas.dataset.image !== String(i)) return;
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    this.draw(context, bitmap, i, 0, 0, pixels);
  }
}
