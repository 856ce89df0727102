// A drawing as the network wants it: 8 x 8 numbers from 0 to 1, the digit in the middle.

const SIDE = 8;

/** The part of an image that has ink, as a square round it; null without ink. */
function box({ data, width, height }) {
  let left = width, right = -1, top = height, bottom = -1;
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      if (data[4 * (y * width + x)] < 128) {
        left = Math.min(left, x);
        right = Math.max(right, x);
        top = Math.min(top, y);
        bottom = Math.max(bottom, y);
      }
  if (right < 0) return null;
  const side = Math.max(right - left, bottom - top) + 1;
  const middle = [(left + right + 1 - side) / 2, (top + bottom + 1 - side) / 2];
  return { left: Math.round(middle[0]), top: Math.round(middle[1]), side };
}

/** The share of ink in each of 64 cells. */
export function toPixels(image) {
  const x = new Float32Array(SIDE * SIDE), place = box(image);
  if (!place) return x;
  const cell = place.side / SIDE;
  for (let row = 0; row < SIDE; row++)
    for (let column = 0; column < SIDE; column++) {
      let ink = 0, count = 0;
      for (let v = 0; v < cell; v++)
        for (let h = 0; h < cell; h++) {
          const px = Math.floor(place.left + column * cell + h);
          const py = Math.floor(place.top + row * cell + v);
          count++;
          if (px < 0 || py < 0 || px >= image.width || py >= image.height) continue;
          ink += 1 - image.data[4 * (py * image.width + px)] / 255;
        }
      x[row * SIDE + column] = count ? ink / count : 0;
    }
  return x;
}

/** Scores as shares of 1. */
export function shares(scores) {
  const most = Math.max(...scores), powers = Array.from(scores, (s) => Math.exp(s - most));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((p) => p / sum);
}
