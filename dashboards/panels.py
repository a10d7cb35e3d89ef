"""The few panel shapes that all dashboards use, so that they look and read alike.

Every panel has a title that is a noun, a description that says how to read it, and a unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
RATE: Final = "[$__rate_interval]"
GREEN, YELLOW, RED = "green", "orange", "red"

# Grafana's ids of units
SHORT: Final = "short"
SECONDS: Final = "s"
BYTES: Final = "bytes"
RATIO: Final = "percentunit"
PER_SECOND: Final = "cps"


@dataclass(frozen=True)
class Query:
    """A PromQL expression and how its series are called."""

    expr: str
    legend: str = ""


def target(
    query: Query,
    ref: str,
    *,
    instant: bool = False,
    format_: PromQueryFormat = PromQueryFormat.TIME_SERIES,
) -> prometheus.Dataquery:
    built = (
        prometheus.Dataquery().expr(query.expr).ref_id(ref).datasource(DATASOURCE).format(format_)
    )
    if query.legend:
        built = built.legend_format(query.legend)
    return built.instant() if instant else built.range()


def limits(*steps: tuple[float, str], base: str = GREEN) -> dashboard.ThresholdsConfig:
    """Colours from a value upward; ``base`` below the first."""
    levels = [models.Threshold(value=None, color=base)]
    levels += [models.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(levels)


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    span: int = 12,
    stacked: bool = False,
    minimum: float | None = 0,
    maximum: float | None = None,
    exemplars: bool = False,
) -> timeseries.Panel:
    """Values over time; the legend lists the last and the highest."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(span)
        .height(8)
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
            .show_legend(True)
        )
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if minimum is not None:
        panel = panel.min(minimum)
    if maximum is not None:
        panel = panel.max(maximum)
    for number, query in enumerate(queries):
        built = target(query, chr(ord("A") + number))
        panel = panel.with_target(built.exemplar(True) if exemplars else built)
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *steps: tuple[float, str],
    span: int = 4,
    base: str = GREEN,
    empty: str = "none",
) -> stat.Panel:
    """One figure, coloured by its limits. ``empty`` is what stands there when no series answers."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(span)
        .height(4)
        .no_value(empty)
        .graph_mode(common.BigValueGraphMode.AREA)
        .color_mode(common.BigValueColorMode.VALUE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(limits(*steps, base=base))
        .with_target(target(query, "A"))
    )


def rows(
    title: str, description: str, unit: str, *queries: Query, span: int = 12, height: int = 8
) -> table.Panel:
    """The present values, a row a label set."""
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(span)
        .height(height)
        .with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            models.DataTransformerConfig(
                id_val="organize", options={"excludeByName": {"Time": True}}
            )
        )
    )
    for place, query in enumerate(queries):
        panel = panel.with_target(
            target(query, chr(ord("A") + place), instant=True, format_=PromQueryFormat.TABLE)
        )
        if query.legend:
            panel = panel.override_by_query(
                chr(ord("A") + place),
                [models.DynamicConfigValue(id_val="displayName", value=query.legend)],
            )
    return panel


def heat(title: str, description: str, unit: str, query: Query, *, span: int = 12) -> heatmap.Panel:
    """A histogram over time; the query must keep ``le``."""
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(span)
        .height(8)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .steps(64)
            .scale(heatmap_models.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.4)
        )
        .with_target(target(query, "A", format_=PromQueryFormat.HEATMAP))
    )


def board(key: str, title: str, description: str, *, since: str = "now-6h") -> dashboard.Dashboard:
    """An empty dashboard with what all share: data source variable, links to the others, alerts drawn in."""
    return (
        dashboard.Dashboard(f"Agent monitor / {title}")
        .uid(f"agent-monitor-{key}")
        .description(description)
        .tags(["agent-monitor"])
        .timezone("browser")
        .time(since, "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Agent monitor")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["agent-monitor"])
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .annotation(
            dashboard.AnnotationQuery()
            .name("Alerts")
            .datasource(DATASOURCE)
            .enable(True)
            .hide(False)
            .icon_color(RED)
            .expr(
                'ALERTS{alertname=~"AgentMonitor.*",alertname!="AgentMonitorHeartbeat",alertstate="firing"}'
            )
        )
        .annotation(
            dashboard.AnnotationQuery()
            .name("Worker started with another version")
            .datasource(DATASOURCE)
            .enable(True)
            .hide(False)
            .icon_color("blue")
            .expr(
                "count by (version) (agent_monitor_build_info) unless count by (version) (agent_monitor_build_info offset 2m)"
            )
        )
    )


def choice(name: str, label: str, metric: str) -> dashboard.QueryVariable:
    """A variable over the values of a label of ``metric``; all of them by default."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(f"label_values({metric}, {name})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )
