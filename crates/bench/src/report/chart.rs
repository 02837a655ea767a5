//! Grouped bars, and lines, as SVG. Colours are classes that the page's style defines, so that they follow light and dark.

use super::html::escape;
use std::fmt::Write;

pub struct Series {
    pub label: String,
    /// Style class of the bars.
    pub class: &'static str,
    /// One a group; `None` leaves a gap.
    pub values: Vec<Option<f64>>,
}

pub struct BarChart {
    pub groups: Vec<String>,
    pub series: Vec<Series>,
    pub unit: &'static str,
    pub width: f64,
    pub height: f64,
    /// Write each value above its bar.
    pub value_labels: bool,
}

const MARGIN_LEFT: f64 = 52.0;
const MARGIN_RIGHT: f64 = 8.0;
const MARGIN_TOP: f64 = 40.0;
const MARGIN_BOTTOM: f64 = 28.0;

impl BarChart {
    pub fn svg(&self) -> String {
        let values = || self.series.iter().flat_map(|series| series.values.iter().flatten().copied());
        let (low, high, step) = axis(values().fold(0.0, f64::min), values().fold(0.0, f64::max));
        let plot_width = self.width - MARGIN_LEFT - MARGIN_RIGHT;
        let plot_height = self.height - MARGIN_TOP - MARGIN_BOTTOM;
        let y = |value: f64| MARGIN_TOP + plot_height * (high - value) / (high - low);

        let mut svg = format!(
            "<svg viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">",
            self.width, self.height
        );
        legend(&mut svg, self.series.iter().map(|series| (series.label.as_str(), series.class)));
        let ticks = ((high - low) / step).round() as usize;
        for tick in 0..=ticks {
            let value = low + step * tick as f64;
            let class = if value.abs() < step / 1e3 { "axis" } else { "grid" };
            let _ = write!(
                svg,
                "<line class=\"{class}\" x1=\"{MARGIN_LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>\
                 <text class=\"tick\" x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
                self.width - MARGIN_RIGHT,
                y(value),
                MARGIN_LEFT - 8.0,
                y(value) + 4.0,
                self.tick(value, step, tick == ticks),
            );
        }
        let group_width = plot_width / self.groups.len().max(1) as f64;
        // Ratios need the second digit.
        let decimals = if high.max(-low) <= 5.0 { 2 } else { 1 };
        let padding = if self.value_labels { 0.25 } else { 0.14 };
        let bar_width = (group_width * (1.0 - 2.0 * padding) / self.series.len().max(1) as f64).min(64.0);
        for (group, name) in self.groups.iter().enumerate() {
            let center = MARGIN_LEFT + group_width * (group as f64 + 0.5);
            let left = center - bar_width * self.series.len() as f64 / 2.0;
            for (index, series) in self.series.iter().enumerate() {
                let Some(value) = series.values.get(group).copied().flatten() else { continue };
                let (top, bottom) = (y(value.max(0.0)), y(value.min(0.0)));
                let x = left + bar_width * index as f64;
                let _ = write!(
                    svg,
                    "<rect class=\"{}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"{}\"><title>{}</title></rect>",
                    series.class,
                    (bar_width - if bar_width > 12.0 { 3.0 } else { 0.8 }).max(0.5),
                    (bottom - top).max(0.5),
                    if bar_width > 12.0 { 3 } else { 1 },
                    escape(&format!("{name}, {}: {value:.1} {}", series.label, self.unit)),
                );
                if self.value_labels {
                    let _ = write!(
                        svg,
                        "<text class=\"value-label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value:.decimals$}</text>",
                        x + bar_width / 2.0 - 1.5,
                        top - 6.0,
                    );
                }
            }
            let _ = write!(
                svg,
                "<text class=\"group\" x=\"{center:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                self.height - 8.0,
                escape(name)
            );
        }
        svg.push_str("</svg>");
        svg
    }

    fn tick(&self, value: f64, step: f64, with_unit: bool) -> String {
        let decimals = if step >= 1.0 {
            0
        } else if step >= 0.1 {
            1
        } else {
            2
        };
        if with_unit { format!("{value:.decimals$} {}", self.unit) } else { format!("{value:.decimals$}") }
    }
}

fn legend<'a>(svg: &mut String, entries: impl Iterator<Item = (&'a str, &'a str)>) {
    let mut x = MARGIN_LEFT;
    for (label, class) in entries {
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"6\" width=\"12\" height=\"12\" rx=\"3\"/>\
             <text class=\"legend\" x=\"{:.1}\" y=\"16\">{}</text>",
            x + 18.0,
            escape(label)
        );
        // There is no font to measure with: an average width of its letters is near enough.
        x += 18.0 + label.chars().count() as f64 * 7.2 + 20.0;
    }
}

/// Round bounds around the values, and the distance between ticks: about five of them.
fn axis(low: f64, high: f64) -> (f64, f64, f64) {
    let span = (high - low).max(1e-3) * 1.05;
    let rough = span / 5.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * magnitude)
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let low = if low < 0.0 { (low * 1.05 / step).floor() * step } else { 0.0 };
    (low, ((high * 1.05) / step).ceil().max(1.0) * step, step)
}

pub struct Point {
    pub x: f64,
    pub y: f64,
    /// The band around the line.
    pub lower: f64,
    pub upper: f64,
}

pub struct Line {
    pub label: String,
    /// Style class of the line and its band.
    pub class: &'static str,
    /// By rising `x`.
    pub points: Vec<Point>,
}

/// A value of `x` that means something, drawn as a vertical line. Labels of more than two letters stand in a second row.
pub struct Mark {
    pub x: f64,
    pub label: String,
}

/// A value of `y` to compare with, drawn as a horizontal line.
pub struct Level {
    pub y: f64,
    pub label: String,
}

/// Lines with bands. Both axes are logarithmic, so all values are positive.
pub struct LineChart {
    pub lines: Vec<Line>,
    pub marks: Vec<Mark>,
    pub levels: Vec<Level>,
    pub unit: &'static str,
    /// Values of `x` with a label; `None`: powers of two.
    pub x_ticks: Option<Vec<f64>>,
    pub x_label: Box<dyn Fn(f64) -> String>,
    pub width: f64,
    pub height: f64,
}

/// Room for so many labels below the axis.
const X_LABELS_MAX: i32 = 7;

impl LineChart {
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
        };
        let (x_low, x_high) = bounds(&mut points().map(|point| point.x));
        let levels = self.levels.iter().map(|level| level.y);
        let (y_low, y_high) = bounds(&mut points().flat_map(|point| [point.lower, point.upper]).chain(levels));
        let mut svg = format!(
            "<svg viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">",
            self.width, self.height
        );
        if !(x_low.is_finite() && y_low.is_finite()) {
            svg.push_str("</svg>");
            return svg;
        }
        legend(&mut svg, self.lines.iter().map(|line| (line.label.as_str(), line.class)));

        let ticks = logarithmic_ticks(y_low, y_high);
        let (left, right) = (MARGIN_LEFT + 6.0, self.width - MARGIN_RIGHT - 6.0);
        let (bottom, top) = (self.height - MARGIN_BOTTOM, MARGIN_TOP);
        let x = |value: f64| left + (right - left) * (value / x_low).log2() / (x_high / x_low).log2().max(1e-9);
        let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
        let y = |value: f64| bottom - (bottom - top) * (value / low).log2() / (high / low).log2();

        for (index, tick) in ticks.iter().enumerate() {
            let unit = if index + 1 == ticks.len() { format!(" {}", self.unit) } else { String::new() };
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{MARGIN_LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>\
                 <text class=\"tick\" x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{tick}{unit}</text>",
                self.width - MARGIN_RIGHT,
                y(*tick),
                MARGIN_LEFT - 8.0,
                y(*tick) + 4.0,
            );
        }
        for label in self.x_ticks.clone().unwrap_or_else(|| x_ticks(x_low, x_high)) {
            let _ = write!(
                svg,
                "<text class=\"group\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x(label),
                self.height - 8.0,
                escape(&(self.x_label)(label))
            );
        }
        for mark in self.marks.iter().filter(|mark| (x_low..=x_high).contains(&mark.x)) {
            let row = if mark.label.len() > 2 { 24.0 } else { 10.0 };
            let _ = write!(
                svg,
                "<line class=\"mark-line\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>\
                 <text class=\"tick\" x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
                x(mark.x),
                x(mark.x) - 4.0,
                top + row,
                escape(&mark.label)
            );
        }
        for level in &self.levels {
            let _ = write!(
                svg,
                "<line class=\"mark-line\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>\
                 <text class=\"tick\" x=\"{right:.1}\" y=\"{1:.1}\" text-anchor=\"end\">{2}</text>",
                y(level.y),
                y(level.y) - 5.0,
                escape(&level.label)
            );
        }
        for line in &self.lines {
            let path = |points: &mut dyn Iterator<Item = (f64, f64)>| {
                points.map(|(px, py)| format!("{:.1},{:.1}", x(px), y(py))).collect::<Vec<_>>().join(" ")
            };
            let band = path(
                &mut line
                    .points
                    .iter()
                    .map(|point| (point.x, point.upper))
                    .chain(line.points.iter().rev().map(|point| (point.x, point.lower))),
            );
            let middle = path(&mut line.points.iter().map(|point| (point.x, point.y)));
            let _ = write!(
                svg,
                "<polygon class=\"band {0}\" points=\"{band}\"/><polyline class=\"line {0}\" points=\"{middle}\"/>",
                line.class
            );
            for point in &line.points {
                let _ = write!(
                    svg,
                    "<circle class=\"dot {}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.4\"><title>{}</title></circle>",
                    line.class,
                    x(point.x),
                    y(point.y),
                    escape(&format!(
                        "{}, {}: {:.1} {} ({:.1}–{:.1})",
                        line.label,
                        (self.x_label)(point.x),
                        point.y,
                        self.unit,
                        point.lower,
                        point.upper
                    ))
                );
            }
        }
        svg.push_str("</svg>");
        svg
    }
}

/// Powers of two, as many as there is room for.
fn x_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log2().ceil() as i32, high.log2().floor() as i32);
    let step = (last - first).max(0) / X_LABELS_MAX + 1;
    (first..=last).filter(|exponent| (last - exponent) % step == 0).map(|exponent| 2f64.powi(exponent)).collect()
}

/// 1, 2, 5, 10, 20, 50 and so on around the values.
fn logarithmic_ticks(low: f64, high: f64) -> Vec<f64> {
    let low = low.max(0.1);
    let from = low.log10().floor() as i32;
    let all: Vec<f64> = (from..from + 12)
        .flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)))
        .map(|tick| (tick * 1e6).round() / 1e6)
        .collect();
    let first = all.iter().rposition(|tick| *tick <= low).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high).unwrap_or(all.len() - 1).max(first + 1);
    all[first..=last].to_vec()
}
