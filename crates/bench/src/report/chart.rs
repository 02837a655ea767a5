//! Grouped bar charts as SVG. Colours are classes that the page's style defines, so that they follow light and dark.

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
        self.legend(&mut svg);
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

    fn legend(&self, svg: &mut String) {
        let mut x = MARGIN_LEFT;
        for series in &self.series {
            let _ = write!(
                svg,
                "<rect class=\"{}\" x=\"{x:.1}\" y=\"6\" width=\"12\" height=\"12\" rx=\"3\"/>\
                 <text class=\"legend\" x=\"{:.1}\" y=\"16\">{}</text>",
                series.class,
                x + 18.0,
                escape(&series.label)
            );
            // There is no font to measure with: an average width of its letters is near enough.
            x += 18.0 + series.label.chars().count() as f64 * 7.2 + 20.0;
        }
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
