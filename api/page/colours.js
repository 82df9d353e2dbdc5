// Colours of the sheet of style, as the chart library wants them.

const NAMES = ["--curve-1", "--curve-2", "--curve-3", "--curve-4", "--curve-5", "--curve-6", "--curve-7", "--curve-8"];

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

// A variable may hold light-dark(): only a colour that is used is worked out.
export function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

export const curveColour = (index) => colour(NAMES[index % NAMES.length]);

// When the colours come round again, the lines differ.
export const dash = (index) => ["solid", "dash", "dot", "dashdot"][Math.floor(index / NAMES.length) % 4];

export function faint(rgb, share) {
  return rgb.replace(/^rgb\(/, "rgba(").replace(/\)$/, `, ${share})`);
}
