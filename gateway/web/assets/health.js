// What may be believed of a Node, and how it looks.
//
// No state is told by colour alone: each has a shape of its own, the fuller the better. The colours keep apart for all common
// kinds of colour blindness, also by their lightness, on paper and at night.

// healths are ordered by how much they want to be looked at.
export const healths = [
  { code: "HEALTH_UNKNOWN", word: "unknown", meaning: "declared: its conditions are Unknown", day: "#93246b", night: "#e58bc0", draw: cross },
  { code: "HEALTH_SILENT", word: "silent", meaning: "its deadline has passed; not declared yet", day: "#c84a00", night: "#ff8142", draw: diamond },
  { code: "HEALTH_SUSPECT", word: "suspect", meaning: "signs of life are missing; its deadline has not passed", day: "#a88400", night: "#f0d43a", draw: triangle },
  { code: "HEALTH_NOT_READY", word: "not ready", meaning: "it lives and reports that it is not ready", day: "#c97a1d", night: "#e8a552", draw: half },
  { code: "HEALTH_STARTING", word: "starting", meaning: "it has not said yet whether it is ready", day: "#1f78b4", night: "#6ab7ee", draw: ring },
  { code: "HEALTH_READY", word: "ready", meaning: "it lives and reports that it is ready", day: "#52a386", night: "#3b8a71", draw: square },
];

const byCode = new Map(healths.map((health, rank) => [health.code, rank]));

// rankOf is the place of a health in healths; what a later version says counts as unknown.
export function rankOf(code) {
  return byCode.get(code) ?? 0;
}

const night = matchMedia("(prefers-color-scheme: dark)");

// onThemeChange calls back when day turns to night.
export function onThemeChange(callback) {
  night.addEventListener("change", callback);
}

export function colorOf(health) {
  return night.matches ? health.night : health.day;
}

// spritesOf paints each health once, as a square of so many pixels.
export function spritesOf(pixels) {
  return healths.map((health) => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = pixels;
    const context = canvas.getContext("2d");
    context.fillStyle = context.strokeStyle = colorOf(health);
    context.lineWidth = Math.max(1, pixels * 0.18);
    health.draw(context, pixels);
    return canvas;
  });
}

function square(context, s) {
  context.beginPath();
  context.roundRect(0, 0, s, s, s * 0.18);
  context.fill();
}

function ring(context, s) {
  const inset = context.lineWidth / 2;
  context.beginPath();
  context.arc(s / 2, s / 2, s / 2 - inset, 0, 2 * Math.PI);
  context.stroke();
}

function half(context, s) {
  const inset = context.lineWidth / 2;
  context.strokeRect(inset, inset, s - 2 * inset, s - 2 * inset);
  context.fillRect(0, s / 2, s, s / 2);
}

function triangle(context, s) {
  polygon(context, [s / 2, 0, s, s, 0, s]);
}

function diamond(context, s) {
  polygon(context, [s / 2, 0, s, s / 2, s / 2, s, 0, s / 2]);
}

function cross(context, s) {
  const inset = context.lineWidth / 2;
  context.lineWidth = Math.max(1.5, s * 0.26);
  context.beginPath();
  context.moveTo(inset, inset);
  context.lineTo(s - inset, s - inset);
  context.moveTo(s - inset, inset);
  context.lineTo(inset, s - inset);
  context.stroke();
}

function polygon(context, [x, y, ...rest]) {
  context.beginPath();
  context.moveTo(x, y);
  for (let i = 0; i < rest.length; i += 2) context.lineTo(rest[i], rest[i + 1]);
  context.closePath();
  context.fill();
}
