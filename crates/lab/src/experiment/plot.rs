//! Charts as SVG, without a library.

use std::fmt::Write;

const COLOURS: [&str; 6] = [
    "#d1495b", "#30638e", "#edae49", "#66a182", "#8d96a3", "#2e4057",
];
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;

/// Named points, joined by a line.
pub type Series = (String, Vec<(f64, f64)>);

/// A chart of lines.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// Name and unit of the horizontal axis.
    pub x: String,
    /// Name and unit of the vertical axis.
    pub y: String,
    /// The lines.
    pub series: Vec<Series>,
}

impl Chart {
    /// Draws the chart; the vertical axis begins at 0.
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|(_, p)| p);
        let top = |v: f64| if v > 0.0 { v } else { 1.0 };
        let x_min = points()
            .map(|p| p.0)
            .fold(f64::INFINITY, f64::min)
            .min(f64::MAX);
        let x_max = points().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
        let y_max = top(points().map(|p| p.1).fold(0.0, f64::max) * 1.05);
        let span = top(x_max - x_min);
        let x = |v: f64| LEFT + (v - x_min) / span * WIDTH;
        let y = |v: f64| TOP + HEIGHT - v / y_max * HEIGHT;
        let mut body = String::new();
        for i in 0..=4 {
            let v = y_max * f64::from(i) / 4.0;
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                body,
                "<line x1='{LEFT}' x2='{:.1}' y1='{:.1}' y2='{:.1}' stroke='#ddd'/><text x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>",
                LEFT + WIDTH,
                y(v),
                y(v),
                LEFT - 6.0,
                y(v) + 4.0,
                short(v)
            );
            let v = x_min + span * f64::from(i) / 4.0;
            let _ = writeln!(
                body,
                "<text x='{:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
                x(v),
                TOP + HEIGHT + 16.0,
                short(v)
            );
        }
        for (i, (name, line)) in self.series.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let text: Vec<String> = line
                .iter()
                .map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1)))
                .collect();
            let _ = writeln!(
                body,
                "<polyline fill='none' stroke='{colour}' stroke-width='1.5' points='{}'/>\
                 <rect x='{:.0}' y='26' width='10' height='3' fill='{colour}'/><text x='{:.0}' y='32'>{}</text>",
                text.join(" "),
                LEFT + 130.0 * i as f64,
                LEFT + 130.0 * i as f64 + 14.0,
                escape(name)
            );
        }
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{:.0}' height='{:.0}' font-family='sans-serif' font-size='11'>\n\
             <rect width='100%' height='100%' fill='white'/>\n<text x='{LEFT}' y='16' font-weight='bold'>{}</text>\n{body}\
             <text x='{:.0}' y='{:.0}' text-anchor='middle'>{}</text>\n\
             <text transform='translate(14 {:.0}) rotate(-90)' text-anchor='middle'>{}</text>\n</svg>\n",
            LEFT + WIDTH + 30.0,
            TOP + HEIGHT + 44.0,
            escape(&self.title),
            LEFT + WIDTH / 2.0,
            TOP + HEIGHT + 34.0,
            escape(&self.x),
            TOP + HEIGHT / 2.0,
            escape(&self.y)
        )
    }
}

/// A number with three digits that matter.
pub fn short(v: f64) -> String {
    let a = v.abs();
    if a >= 1e6 {
        format!("{:.3}M", v / 1e6)
    } else if a >= 1e4 {
        format!("{:.1}k", v / 1e3)
    } else if a >= 100.0 || v == v.round() {
        format!("{v:.0}")
    } else if a >= 10.0 {
        format!("{v:.1}")
    } else {
        format!("{v:.2}")
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_line_for_each_series_and_escapes_its_names() {
        let chart = Chart {
            title: "a < b".to_owned(),
            x: "s".to_owned(),
            y: "ops/s".to_owned(),
            series: vec![
                ("one".to_owned(), vec![(0.0, 1.0), (2.0, 4.0)]),
                ("two".to_owned(), vec![]),
            ],
        };
        let svg = chart.svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(
            svg.contains("a &lt; b") && svg.contains("70.0,223.0") || svg.contains("70.0,222.9"),
            "{svg}"
        );
    }

    #[test]
    fn numbers_are_short() {
        let text: Vec<String> = [0.0, 1.234, 56.78, 789.0, 12_345.0, 1.5e6]
            .map(short)
            .into();
        assert_eq!(text, ["0", "1.23", "56.8", "789", "12.3k", "1.500M"]);
    }
}
