// The metrics by name, with title, unit and direction. The same table as in fedsim/learning_tasks/metrics.py.

// In order: the first of these that a job has represents it.
export const METRICS = {
  perplexity: { title: "perplexity", unit: "", higher: false },
  mean_iou: { title: "mean IoU", unit: "share", higher: true },
  rmse: { title: "RMSE", unit: "unit of the target", higher: false },
  accuracy: { title: "accuracy", unit: "share", higher: true },
  f1: { title: "macro F1", unit: "share", higher: true },
  auroc: { title: "AUROC", unit: "share", higher: true },
  mae: { title: "MAE", unit: "unit of the target", higher: false },
  r2: { title: "R2", unit: "", higher: true },
};
const LOSS = { title: "loss", unit: "nats", higher: false };
const KIND = new RegExp(`(?:^|_)(${[...Object.keys(METRICS), "loss"].join("|")})(?=_|$)`);

// The name of the metric inside the name of a record's value, such as `rmse` of `global_validation_rmse`.
export const findKind = (name) => KIND.exec(name)?.[1] ?? null;
const isSpread = (name) => /_std(_|$)/.test(name);
export const findMetric = (name) => (findKind(name) && !isSpread(name) ? METRICS[findKind(name)] ?? LOSS : null);
export const isLowerBetter = (name) => findMetric(name)?.higher === false;
export const isShare = (name) => findMetric(name)?.unit === "share";

// The metrics that may represent a job, in order. A job with only personal models has no metric of a global model; a job
// without test examples, such as a trial of a search, has metrics on the validation set alone.
export const MAIN_METRICS = ["global", "personal", "global_validation", "personal_validation"].flatMap((whose) => Object.keys(METRICS).map((kind) => `${whose}_${kind}`));
export const findMainMetric = (metrics) => MAIN_METRICS.find((name) => typeof metrics[name] === "number") ?? "global_accuracy";

// The title of an axis: the unit, and the direction if lower is better.
export function describeAxis(kind) {
  const { unit, higher } = METRICS[kind] ?? LOSS;
  return [["", "share", "nats"].includes(unit) ? "" : unit, higher || !METRICS[kind] ? "" : "lower is better"].filter(Boolean).join(", ");
}
