"""The summary of a pipeline: figures per version and of the drill, as text, Markdown, JSON and metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import fill
from typing import Any

WIDTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One version of a run; seconds and bytes. ``None`` where it does not apply."""

    version: int
    plan: str
    root: str
    figures: Mapping[str, float]
    kind: str
    full_bytes: int
    sent_bytes: int
    publish_seconds: float
    deploy_seconds: float
    update_pause_seconds: float | None
    p50_seconds: float | None
    p99_seconds: float | None
    p50_update_seconds: float | None
    p99_update_seconds: float | None
    requests: int
    failed_requests: int
    resent_requests: int

    @property
    def patch_ratio(self) -> float:
        return self.full_bytes / self.sent_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """What happened to the spoiled version."""

    detection_seconds: float
    rollback_seconds: float
    reason: str
    back_at_version: int
    further_alarms: int
    moved_by_further_alarms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything a run of the pipeline measured."""

    model: str
    rows: int
    rejected: Mapping[str, int]
    versions: tuple[VersionRow, ...]
    checked_answers: int
    drill: Drill | None
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Summary":
        """What :meth:`as_dict` gave, read back."""
        drill = facts["drill"]
        return cls(
            **{
                **facts,
                "versions": tuple(VersionRow(**row) for row in facts["versions"]),
                "drill": Drill(**drill) if drill else None,
            }
        )


_ROWS: tuple[tuple[str, Callable[[VersionRow], str]], ...] = (
    ("plan", lambda row: row.plan),
    ("held-out", lambda row: _figures(row.figures)),
    ("stored as", lambda row: row.kind),
    ("bytes full", lambda row: f"{row.full_bytes:,}"),
    ("bytes sent", lambda row: f"{row.sent_bytes:,}"),
    ("patch ratio", lambda row: f"{row.patch_ratio:.1f}"),
    ("publish s", lambda row: f"{row.publish_seconds:.2f}"),
    ("deploy s", lambda row: f"{row.deploy_seconds:.2f}"),
    ("update pause ms", lambda row: _ms(row.update_pause_seconds)),
    ("p50 ms", lambda row: _ms(row.p50_seconds)),
    ("p99 ms", lambda row: _ms(row.p99_seconds)),
    ("p50 ms in update", lambda row: _ms(row.p50_update_seconds)),
    ("p99 ms in update", lambda row: _ms(row.p99_update_seconds)),
    ("requests", lambda row: f"{row.requests:,}"),
    ("failed requests", lambda row: f"{row.failed_requests}"),
    ("sent again", lambda row: f"{row.resent_requests}"),
)


def _figures(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{value:.4f}" if name == "accuracy" else f"{name} {value:.4f}" for name, value in figures.items())


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.2f}"


def as_text(summary: Summary) -> str:
    """A table of at most 80 columns for four versions, and the drill in sentences."""
    header = ["", *(f"v{row.version}" for row in summary.versions)]
    table = [header, *([label, *(cell(row) for row in summary.versions)] for label, cell in _ROWS)]
    widths = [max(len(line[column]) for line in table) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(
            zip(line, widths, strict=True)
        )).rstrip()
        for line in table
    ]  # fmt: skip
    return "\n".join([*lines, "", *(fill(sentence, WIDTH) for sentence in sentences(summary))])


def as_markdown(summary: Summary) -> str:
    """The same for Prefect and MLflow."""
    columns = len(summary.versions)
    head = "| | " + " | ".join(f"v{row.version}" for row in summary.versions) + " |"
    rule = "|---|" + "---:|" * columns
    rows = [f"| {label} | " + " | ".join(cell(row) for row in summary.versions) + " |" for label, cell in _ROWS]
    roots = [f"- v{row.version}: `{row.root}`" for row in summary.versions]
    return "\n".join([f"# {summary.model}", "", head, rule, *rows, "", *sentences(summary), "", "Roots:", *roots, ""])


def sentences(summary: Summary) -> Sequence[str]:
    """What the table does not say."""
    rejected = ", ".join(f"{count} {reason}" for reason, count in summary.rejected.items()) or "none"
    lines = [
        f"{summary.rows:,} rows ingested, rejected: {rejected}.",
        f"{summary.checked_answers:,} answers under load, each byte for byte the offline answer of the root it names.",
    ]
    if summary.drill is not None:
        drill = summary.drill
        lines += [
            f"Spoiled version seen after {drill.detection_seconds:.1f} s, "
            f"rolled back to v{drill.back_at_version} in {drill.rollback_seconds:.2f} s.",
            f"Why: {drill.reason}.",
            f"{drill.further_alarms} further alarms moved the alias {drill.moved_by_further_alarms} times.",
        ]
    return [*lines, f"{summary.seconds:.0f} s in all."]


def short(root: str) -> str:
    """A root for people: enough of it to tell two apart."""
    return f"{root[:19]}…"


def as_metrics(summary: Summary) -> dict[str, float]:
    """Numbers for MLflow: ``v2_patch_ratio``, ``drill_detection_seconds``, …"""
    metrics: dict[str, float] = {"seconds": summary.seconds, "checked_answers": float(summary.checked_answers)}
    for row in summary.versions:
        facts = {**asdict(row), "patch_ratio": row.patch_ratio}
        metrics |= {f"v{row.version}_{key}": float(value) for key, value in facts.items() if _is_number(value)}
        metrics |= {f"v{row.version}_{key}": value for key, value in row.figures.items()}
    if summary.drill is not None:
        metrics |= {f"drill_{key}": float(value) for key, value in asdict(summary.drill).items() if _is_number(value)}
    return metrics


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
