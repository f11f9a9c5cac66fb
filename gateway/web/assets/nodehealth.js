// The health states of a Node and their symbols.
//
// Each state has its own shape, not only a color; better states have fuller shapes. The colors
// differ in lightness and for all common kinds of color blindness, in the light and in the dark
// theme.

// healths are ordered by severity.
export const healths = [
  { code: "HEALTH_UNKNOWN", word: "unknown", meaning: "its conditions are set to Unknown", light: "#93246b", dark: "#e58bc0", draw: cross },
  { code: "HEALTH_SILENT", word: "silent", meaning: "its signals have expired; its conditions are not set to Unknown yet", light: "#c84a00", dark: "#ff8142", draw: diamond },
  { code: "HEALTH_SUSPECT", word: "suspect", meaning: "heartbeats are missing; its lease has not expired", light: "#a88400", dark: "#f0d43a", draw: triangle },
  { code: "HEALTH_NOT_READY", word: "not ready", meaning: "it sends heartbeats and reports that it is not ready", light: "#c97a1d", dark: "#e8a552", draw: half },
  { code: "HEALTH_STARTING", word: "starting", meaning: "it has not reported yet whether it is ready", light: "#1f78b4", dark: "#6ab7ee", draw: ring },
  { code: "HEALTH_READY", word: "ready", meaning: "it sends heartbeats and reports that it is ready", light: "#52a386", dark: "#3b8a71", draw: square },
];

const byCode = new Map(healths.map((health, rank) => [health.code, rank]));

// rankOf is the index of a health in healths. A state of a later version is unknown.
export function rankOf(code) {
  return byCode.get(code) ?? 0;
}

const darkTheme = matchMedia("(prefers-color-scheme: dark)");

// onThemeChange calls back when the theme changes.
export function onThemeChange(callback) {
  darkTheme.addEventListener("change", callback);
}

export function colorOf(health) {
  return darkTheme.matches ? health.dark : health.light;
}

// spritesOf draws each health on a canvas of so many pixels.
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
