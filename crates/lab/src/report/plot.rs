//! Charts as SVG documents: grids of line charts, and groups of horizontal bars.

use crate::{Error, Result};
use plotters::prelude::*;

const COLOURS: [u32; 9] = [
    0xd1495b, 0x30638e, 0xedae49, 0x66a182, 0x8d96a3, 0x2e4057, 0xb565a7, 0x5b8c2a, 0x009b9e,
];
const FONT: (&str, u32) = ("sans-serif", 11);
/// Width and height of a line chart in pixels.
const CHART_SIZE: (u32, u32) = (740, 334);
/// Width of the labels to the left of the bars in pixels.
const LABEL_WIDTH: i32 = 280;
/// Average width of a character.
const CHARACTER_WIDTH: i32 = 6;
/// Length of the longest bar of a group in pixels.
const BAR_LENGTH: f64 = 480.0;
const ROW_HEIGHT: i32 = 14;
/// Number of names in a row of a legend.
const LEGEND_COLUMNS: usize = 5;

/// Name of a line and its points.
pub type Series = (String, Vec<(f64, f64)>);

/// Line chart with a vertical axis that begins at 0.
pub struct LineChart {
    /// Title above the chart.
    pub title: String,
    /// Quantity and unit of the horizontal axis.
    pub x: String,
    /// Quantity and unit of the vertical axis.
    pub y: String,
    /// Lines of the chart with their names.
    pub series: Vec<Series>,
}

/// Group of bars under one label.
pub struct BarGroup {
    /// Label of the group.
    pub label: String,
    /// Values, each with the index of its series.
    pub bars: Vec<(usize, f64)>,
}

/// Draws `rows` of line charts, each chart in a cell of a grid.
pub fn line_charts(rows: &[Vec<LineChart>]) -> Result<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let (width, height) = CHART_SIZE;
    let size = (width * columns as u32, height * rows.len().max(1) as u32);
    document(size, |root| {
        for (row, charts) in root
            .split_evenly((rows.len().max(1), columns))
            .chunks(columns)
            .zip(rows)
        {
            for (cell, chart) in row.iter().zip(charts) {
                draw_lines(cell, chart)?;
            }
        }
        Ok(())
    })
}

/// Draws groups of horizontal bars with a legend of `series`; the longest bar of each group has the full length.
pub fn bars(series: &[&str], groups: &[BarGroup], unit: &str) -> Result<String> {
    let rows: usize = groups.iter().map(|g| g.bars.len()).sum();
    let legend = 12 + ROW_HEIGHT * series.len().div_ceil(LEGEND_COLUMNS) as i32;
    let height = legend as u32 + ROW_HEIGHT as u32 * rows as u32 + 8 * groups.len() as u32;
    let longest_label = groups.iter().map(|g| g.label.chars().count()).max();
    let label_width = LABEL_WIDTH.max(20 + CHARACTER_WIDTH * longest_label.unwrap_or(0) as i32);
    document((label_width as u32 + 580, height), |root| {
        for (i, name) in series.iter().enumerate() {
            let x = 10 + 170 * (i % LEGEND_COLUMNS) as i32;
            let y = 8 + ROW_HEIGHT * (i / LEGEND_COLUMNS) as i32;
            root.draw(&Rectangle::new(
                [(x, y), (x + 10, y + 10)],
                colour(i).filled(),
            ))?;
            root.draw(&Text::new(
                (*name).to_owned(),
                (x + 14, y),
                FONT.into_font(),
            ))?;
        }
        let mut y = legend;
        for group in groups {
            let longest = group
                .bars
                .iter()
                .map(|b| b.1)
                .fold(f64::MIN_POSITIVE, f64::max);
            root.draw(&Text::new(group.label.clone(), (10, y), FONT.into_font()))?;
            for &(i, value) in &group.bars {
                let end = label_width + (value / longest * BAR_LENGTH) as i32;
                let bar = [(label_width, y), (end, y + ROW_HEIGHT - 2)];
                root.draw(&Rectangle::new(bar, colour(i).filled()))?;
                let text = format!("{} {unit}", number(value));
                root.draw(&Text::new(text, (end + 4, y), FONT.into_font()))?;
                y += ROW_HEIGHT;
            }
            y += 8;
        }
        Ok(())
    })
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawResult = Result<(), Box<dyn std::error::Error>>;

fn document(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> DrawResult) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let drawn = root
            .fill(&WHITE)
            .map_err(Into::into)
            .and_then(|()| draw(&root))
            .and_then(|()| root.present().map_err(Into::into));
        drawn.map_err(|e| Error::Command(format!("cannot draw a chart: {e}")))?;
    }
    Ok(svg)
}

fn colour(series: usize) -> RGBColor {
    let [_, red, green, blue] = COLOURS[series % COLOURS.len()].to_be_bytes();
    RGBColor(red, green, blue)
}

fn draw_lines(cell: &Area<'_>, chart: &LineChart) -> DrawResult {
    let points = || chart.series.iter().flat_map(|(_, points)| points);
    let x_min = points()
        .map(|p| p.0)
        .fold(f64::INFINITY, f64::min)
        .min(f64::MAX);
    let x_max = points().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
    let y_max = points().map(|p| p.1).fold(0.0, f64::max);
    let above = |low: f64, high: f64| if high > low { high } else { low + 1.0 };
    let mut axes = ChartBuilder::on(cell)
        .caption(&chart.title, FONT)
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(x_min..above(x_min, x_max), 0.0..above(0.0, y_max * 1.05))?;
    axes.configure_mesh()
        .x_desc(&chart.x)
        .y_desc(&chart.y)
        .x_label_formatter(&|v| number(*v))
        .y_label_formatter(&|v| number(*v))
        .label_style(FONT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (i, (name, line)) in chart.series.iter().enumerate() {
        axes.draw_series(LineSeries::new(line.iter().copied(), colour(i)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 10, y)], colour(i)));
    }
    axes.configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .label_font(FONT)
        .draw()?;
    Ok(())
}

/// Formats a number with three significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        a if a >= 100.0 || value == value.round() => format!("{value:.0}"),
        a if a >= 10.0 => format!("{value:.1}"),
        a if a >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of elements with the colour of a series.
    fn elements(svg: &str, element: &str, series: usize) -> usize {
        let RGBColor(r, g, b) = colour(series);
        let colour = format!("#{r:02X}{g:02X}{b:02X}");
        let lines = svg.lines().filter(|l| l.starts_with(element));
        lines.filter(|l| l.contains(&colour)).count()
    }

    #[test]
    fn a_line_chart_has_a_line_for_each_series_and_escapes_names() {
        let chart = LineChart {
            title: "a < b".to_owned(),
            x: "s".to_owned(),
            y: "ops/s".to_owned(),
            series: vec![
                ("one".to_owned(), vec![(0.0, 1.0), (2.0, 4.0)]),
                ("two".to_owned(), vec![(0.0, 2.0), (2.0, 2.0)]),
                ("three".to_owned(), vec![]),
            ],
        };
        let svg = line_charts(&[vec![chart]]).unwrap();
        // One line in the chart and one in the legend.
        assert_eq!(
            [0, 1].map(|i| elements(&svg, "<polyline", i)),
            [2, 2],
            "{svg}"
        );
        assert!(svg.contains("a &lt; b"), "{svg}");
        assert!(line_charts(&[]).unwrap().starts_with("<svg "));
    }

    #[test]
    fn a_bar_is_as_long_as_its_share_of_the_longest() {
        let group = BarGroup {
            label: "walk, a & b".to_owned(),
            bars: vec![(0, 4.0), (1, 1.0)],
        };
        let svg = bars(&["one", "two"], &[group], "ms").unwrap();
        assert!(
            svg.contains(r#"width="480""#) && svg.contains(r#"width="120""#),
            "{svg}"
        );
        assert!(svg.contains("4 ms") && svg.contains("a &amp; b"), "{svg}");
    }

    #[test]
    fn numbers_have_three_digits() {
        let text = [0.0, 0.1234, 1.234, 56.78, 789.4, 12_345.6].map(number);
        assert_eq!(text, ["0", "0.123", "1.23", "56.8", "789", "12346"]);
    }
}
